"""Clocks inside a pretrained rotary model: rotations of a block at times that depend on its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from floater._hf import cache_in
from floater.encodings.checks import one_of
from floater.encodings.composed.clock import RATES
from floater.flow.precision import wide_dtype, without_autocast
from floater.positions.tracing import in_context_parallel
from floater.pretrained.adapters import active
from floater.pretrained.arguments import refuse_positions
from floater.pretrained.families import PlugError
from floater.pretrained.host import copy_or_share, part_at

ANGLES = "position_embeddings"
"""Argument of attention modules with the cosines and sines, each (batch, T, components)."""
LAYOUTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "halves": lambda angles: torch.cat((angles, angles), -1),
    "neighbours": lambda angles: angles.repeat_interleave(2, -1),
    "once": lambda angles: angles,
}
"""Functions from the angles of the frequencies to those of the components of cosines and sines.

The names say which components are rotated together; "once" has no second component."""
_SMALL = 0.02


@dataclass(frozen=True)
class Rotation:
    """The rotation of an attention module.

    Args:
        path: name of the module in the model.
        block: index of its block.
        width: width of its input.
        frequencies: name in the model of the buffer with the frequencies.
        layout: name of one of `LAYOUTS`.
    """

    path: str
    block: int
    width: int
    frequencies: str
    layout: str


class Clocks(nn.Module):
    """The clocks of a plugged model, one for each block; the module `floater` of the model.

    Args:
        blocks: number of blocks with a clock.
        width: width of the input of attention.
        rate: see `floater.encodings.composed.clock.Clock`.
        start: "zero", with which every rate is 1, or "small", random weights of std 0.02.
    """

    length = None  # there is nothing to bake

    def __init__(self, blocks: int, width: int, rate: str, start: str) -> None:
        super().__init__()
        self.rate = rate
        self.weight = nn.Parameter(torch.zeros(blocks, width))
        self.bias = nn.Parameter(torch.zeros(blocks))
        if start == "small":
            nn.init.normal_(self.weight, std=_SMALL)

    def forward(self, x: Tensor, index: int) -> Tensor:
        """Return by how much time advances more than one at tokens (batch, T, width): (batch, T)."""
        with without_autocast(x):
            weight, bias = (part[index].float().to(x.device) for part in (self.weight, self.bias))
            rate = RATES[self.rate](F.linear(x.float(), weight[None])[..., 0] + bias)
        return rate if self.rate == "angle" else rate - 1


def has_clocks(model: nn.Module) -> bool:
    """Return whether a model is plugged with clocks, or one of its parts is."""
    return any(isinstance(part, Clocks) for part in model.modules())


class Turn:
    """A forward pre-hook of an attention module that turns its rotation by a block's clock.

    The time of a token is its position and the sum of the rates, less 1, of all tokens up to it. Padding on
    the left adds the same to all tokens of a row, which no distance sees. The cache has the sums in layers of
    its own after those of the blocks, so that they follow its beams and crops.

    Args:
        root: plugged model, whose `floater` has the clocks.
        paths: names in the model of the attention modules with a clock.
        index: index of the clock.
        rotation: rotation of the module, also after an extension.
        blocks: number of blocks of the model, hence of layers of a cache.
    """

    def __init__(
        self, root: nn.Module, paths: Sequence[str], index: int, rotation: Rotation, blocks: int
    ) -> None:
        self.root, self.paths, self.index, self.rotation, self.blocks = root, paths, index, rotation, blocks

    def __deepcopy__(self, memo: dict[int, Any]) -> Turn:
        return copy_or_share(self, self.root, self.paths[self.index], memo)

    def _check(self, index: int) -> None:
        """Refuse a model in which a module without the clock of an index is in its place."""
        path = self.paths[index]
        part = part_at(self.root, path)
        if part is None:
            return
        hooks = [hook for module in part.modules() for hook in module._forward_pre_hooks.values()]
        if not any(isinstance(hook, Turn) and hook.index == index for hook in hooks):
            raise PlugError(
                f"another {type(part).__name__} has taken the place of {path}, without its clock; "
                "floater.save the clocks, unplug the model and floater.load them into it"
            )

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if in_context_parallel():
            raise PlugError(
                "a clock sums over all tokens of a text, of which context_parallel shows a part; unplug it "
                "first"
            )
        refuse_positions(self.root, kwargs, (), PlugError)
        if not torch.compiler.is_compiling():
            self._check(self.index)
            path = self.paths[self.index]
            if (part := part_at(self.root, path)) is not None and module not in part.modules():
                raise PlugError(
                    f"a copy of {path} runs with its clock; copy blocks before the model is plugged"
                )
            self._check((self.index + 1) % len(self.paths))  # whose own hook may be gone
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        cos, sin = kwargs[ANGLES]
        clocks: Clocks = active(self.root.floater)
        wide = wide_dtype(hidden.device)
        sums = clocks(hidden, self.index).to(wide).cumsum(1)[:, None, :, None]
        cache = cache_in(kwargs)
        if cache is not None:
            sums = self._continued(cache, sums)
        frequencies = self._frequencies().to(device=hidden.device, dtype=wide)
        if clocks.rate == "angle":
            frequencies = torch.ones_like(frequencies)
        sums = sums[:, 0, -cos.shape[1] :]  # some have rows for cached keys, too
        angle = LAYOUTS[self.rotation.layout]((sums * frequencies).float())
        turned = cos * angle.cos() - sin * angle.sin(), sin * angle.cos() + cos * angle.sin()
        kwargs[ANGLES] = tuple(each.to(cos.dtype) for each in turned)
        return args, kwargs

    def _frequencies(self) -> Tensor:
        holder, _, name = self.rotation.frequencies.rpartition(".")
        return cast(Tensor, getattr(self.root.get_submodule(holder), name))

    def _continued(self, cache: Cache, sums: Tensor) -> Tensor:
        """Store sums (batch, 1, T, 1) after those of the cached tokens, and return all of them."""
        if not isinstance(cache, DynamicCache) or cache.offloading:
            raise PlugError(
                "the sums of a clock are kept in a plain DynamicCache, the default of generate; this is "
                f"{'an offloaded' if getattr(cache, 'offloading', False) else 'a'} {type(cache).__name__}"
            )
        layers: list[Any] = cache.layers
        layer = self.rotation.block
        while len(layers) < self.blocks:
            kind: Any = cache.layer_class_to_replicate or DynamicLayer  # None: the first blocks alone run
            layers.append(kind())
        while len(layers) <= self.blocks + layer:
            layers.append(DynamicLayer())
        stored, tokens = layers[self.blocks + layer], layers[layer].get_seq_length()
        if stored.get_seq_length() != tokens:
            raise PlugError(
                f"the cache has {tokens} tokens and the sums of a clock for {stored.get_seq_length()}; it "
                "was filled by another model, by prefix tuning, or before this one was plugged"
            )
        if tokens:
            sums = sums + stored.keys[:, :, -1:]
        every: Tensor = stored.update(sums, sums[..., :0])[0]
        return every


def clock_options(clock: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a clock in a pretrained model, completed.

    Raises:
        PlugError: if there is another option, or a clock for each head.
        PositionError: if the rate is none of the valid ones.

    Example:
        >>> clock_options({})
        {'per': 'block', 'rate': 'softplus'}
    """
    if not isinstance(clock, Mapping) or clock.keys() - {"per", "rate"}:
        raise PlugError(f"clock is {clock!r}; it maps 'per' and 'rate' to values")
    if (per := clock.get("per", "block")) != "block":
        raise PlugError(
            f"clock has per={per!r}; all heads of a pretrained model share one rotation: it must be 'block'"
        )
    rate = clock.get("rate", "softplus")
    one_of("rate", rate, tuple(RATES))
    return {"per": per, "rate": rate}


def add_clocks(
    model: nn.Module,
    rotations: Sequence[Rotation],
    depth: int,
    blocks: tuple[int, ...],
    options: Mapping[str, Any],
    start: str,
) -> tuple[Clocks, dict[str, nn.Module]]:
    """Hook a clock into each chosen block of a rotary model.

    Args:
        model: the model, changed in place, but for its part `floater`.
        rotations: rotations of its attention modules.
        depth: number of its blocks.
        blocks: indices of the chosen blocks.
        options: result of `clock_options`.
        start: "zero" or "small".

    Returns:
        The clocks, and by their names in the model the modules with a hook.

    Raises:
        PlugError: if no chosen block rotates, or an extension computes the frequencies in each pass.
    """
    chosen = [each for each in rotations if each.block in blocks]
    if not chosen:
        raise PlugError(f"none of blocks {list(blocks)} rotates its queries and keys")
    widths = sorted({each.width for each in chosen})
    if len(widths) > 1:
        raise PlugError(f"the inputs of attention have the widths {widths}; clocks read inputs of one width")
    for each in chosen:
        holder, _, name = each.frequencies.rpartition(".")
        if not isinstance(getattr(part_at(model, holder), name, None), Tensor):
            raise PlugError(
                f"a clock turns a rotation of fixed frequencies, and the extension of this "
                f"{type(model).__name__}, 'clex', computes them in each pass; extend by another method"
            )
    clocks = Clocks(len(chosen), widths[0], options["rate"], start)
    turns, paths = {}, [each.path for each in chosen]
    for index, each in enumerate(chosen):
        turn = Turn(model, paths, index, each, depth)
        module = turns[each.path] = model.get_submodule(each.path)
        module.register_forward_pre_hook(turn, with_kwargs=True)
    return clocks, turns
