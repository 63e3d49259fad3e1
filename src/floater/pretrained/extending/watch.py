"""Observation of an extended body: the positions of its tokens and of the keys in its cache."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers.cache_utils import Cache

from floater._hf import cache_in
from floater.positions import Positions, build_positions
from floater.positions.inputs import visible_keys
from floater.positions.tracing import in_context_parallel, refuse_trace
from floater.pretrained.arguments import check_packed, refuse_positions
from floater.pretrained.extending.caches import KeyPositions, store_positions
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.forward import Arguments, PerThread, observe
from floater.transformer.base import cached_length

PASS = "floater_pass"
"""Argument of a body by which its attention modules get the pass, also when a checkpoint runs them again."""


@dataclass(frozen=True)
class PassPositions:
    """The positions of tokens and keys in one forward pass.

    Args:
        query: positions of the tokens that are read, (batch or 1, T); for attention modules, counted from the
            first token of a row that is not padding.
        key: positions of the cached tokens and of the tokens that are read, (batch or 1, S), likewise.
        scale: scale of the rotation, see `Watch`.
        counted: whether all texts are known to have the positions 0, 1, 2, ... without a look at them.
        alike: whether all texts are known to have the same mask, as without padding.
        shared: values that the blocks share until the pass ends, by name.
    """

    query: Tensor
    key: Tensor
    scale: float
    counted: bool = False
    alike: bool = False
    shared: dict[str, Tensor] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Return the number of tokens of the longest text so far."""
        return self.key.shape[1]

    @functools.cached_property
    def read(self) -> tuple[bool, int]:
        """Return whether all texts have the positions 0, 1, 2, ..., and the largest of a query; one read."""
        if self.counted:
            return True, self.length - 1
        every = torch.arange(self.length, device=self.key.device)
        same = (self.key == every).all() & (self.query == every[-self.query.shape[1] :]).all()
        counts_up, last = torch.stack((same.long(), self.query.max())).tolist()
        return bool(counts_up), last


def _reentrant(module: nn.Module) -> bool:
    """Return whether blocks of a body in training are in checkpoints that lead to their arguments alone."""
    functions = (part.__dict__.get("_gradient_checkpointing_func") for part in module.modules())
    return module.training and any(
        getattr(function, "keywords", {}).get("use_reentrant", False) for function in functions
    )


def require_pass(current: PassPositions | None) -> PassPositions:
    """Return the positions of a pass.

    Raises:
        ExtendError: if there is none.
    """
    if current is None:
        raise ExtendError("an extended model was called in part; call the model itself, model(...)")
    return current


class Watch:
    """An observer of the forward passes of a body.

    Keys are cached after their rotation. If the scale of the rotation depends on the length of the text, keys
    that were cached at another scale have wrong positions (transformers#25104), so such a pass is refused.

    Args:
        body: model of Transformers that reads the tokens; it is observed.
        method: name of the extension's method, for messages.
        scale: function from the number of positions of a batch to the scale of its rotation; None if the
            scale never changes.
        learned: True if the rotation has weights, to which each block leads.
        attention: names of the attention functions that the body may have, by those that they replace; None
            for any. The attention modules of such a body get the pass as the argument `PASS`.
        grouped: True if these group distances, by whether positions count up; see `PassPositions.read`.
        biases: None if queries and keys are rotated; "slots" or "tokens" if a bias is added to logits, and
            positions are counted with padding, as in MPT, or without, as in BLOOM. The keys in a cache then
            do not depend on their positions.

    Raises:
        ExtendError: in a forward pass, if keys were cached at another scale or by a model that was not
            extended, the body has another attention function, or blocks are in reentrant checkpoints while
            the rotation is learned.
    """

    def __init__(
        self,
        body: nn.Module,
        method: str,
        *,
        scale: Callable[[int], float] | None = None,
        learned: bool = False,
        attention: Mapping[str, str] | None = None,
        grouped: bool = False,
        biases: str | None = None,
    ) -> None:
        self.method, self.scale, self.attention, self.biases = method, scale, attention or {}, biases
        self.grouped = grouped
        self.learned, self.signature = learned, inspect.signature(type(body).forward)
        self._local, self._keys = PerThread(), PerThread()
        self._passes = WeakTensorKeyDictionary()
        observe(body, self)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_passes": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _passes=WeakTensorKeyDictionary())

    @property
    def current(self) -> PassPositions:
        """Return the positions of this thread's pass."""
        return require_pass(self._local.current)

    def pass_with(self, argument: Tensor) -> PassPositions:
        """Return the pass in which a block got an argument; a checkpoint runs the block again after it."""
        if self._local.current is not None:
            if torch.compiler.is_compiling():  # weak keys would end the graph, which has its checkpoints
                return self.current
            self._passes[argument] = self._local.current
        return require_pass(self._passes.get(argument))  # type: ignore[no-untyped-call]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Record the positions of the tokens of a pass."""
        what = f"a model extended by {self.method!r}"
        refuse_trace(ExtendError, what, "extend by the configuration alone, as 'yarn' does")
        if torch.compiler.is_exporting():
            raise ExtendError(
                f"{what} cannot be exported, as it reads the positions of each text; extend by the "
                "configuration alone, as 'yarn' does"
            )
        attention = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if self.attention and attention not in self.attention.values():
            valid = list(self.attention.values())
            raise ExtendError(
                f"the attention function is {attention!r}, but a model extended by {self.method!r} needs "
                f"{' or '.join(map(repr, valid))}: call "
                f"model.set_attn_implementation({self.attention.get(str(attention), valid[-1])!r})"
            )
        if self.learned and torch.is_grad_enabled() and _reentrant(module):
            raise ExtendError(
                f"{what} has a rotation with weights, which all blocks share, and checkpoints with "
                "use_reentrant=True would follow it once a block; use False, the default"
            )
        if in_context_parallel():
            raise ExtendError(
                f"{what} reads the positions of all tokens of a text, of which context_parallel shows "
                "a part; extend by a method that reads none, such as 'yarn'"
            )
        bound = self.signature.bind_partial(module, *args, **kwargs).arguments
        inputs = {**bound.pop("kwargs", {}), **bound}
        refuse_positions(module, inputs, self.signature.parameters, ExtendError)
        words = inputs.get("input_ids")
        words = inputs.get("inputs_embeds") if words is None else words
        if words is None:
            return None  # the body refuses it
        check_packed(inputs, getattr(module, "config", None), ExtendError)
        cache = cache_in(inputs)
        cache = getattr(cache, "self_attention_cache", cache)
        cached, mask = cached_length(cache), inputs.get("attention_mask")
        if self.biases is not None:
            positions = self._unpadded(words, cached, mask)
            whole = mask is None or (isinstance(mask, Tensor) and mask.ndim == 2)
            self._local.current = PassPositions(
                positions.query,
                positions.key,
                1.0,
                counted=positions.starts == (cached, 0),
                alike=whole and positions.key_valid is None and inputs.get("position_ids") is None,
            )
            return None
        positions = build_positions(
            words.shape[:2],
            self._cached_positions(cache, cached, len(words)),
            position_ids=_whole_ids(inputs.get("position_ids")),
            device=words.device,
        )
        query, key = (part.expand(len(words), -1) for part in (positions.query, positions.key))
        scale = 1.0
        if self.scale is not None:
            scale = float(self.scale(int(query.max()) + 1 if positions.below is None else positions.below))
        if cache is not None and cached and scale != cache.floater_keys.scale:
            raise ExtendError(
                f"the {cached} keys in the cache are rotated for shorter texts: {self.method!r} rotates a "
                f"text of {int(query.max()) + 1} tokens otherwise; generate from input_ids with "
                "use_cache=False, or extend by a method that rotates all lengths alike, such as 'yarn'"
            )
        self._local.current = PassPositions(query, key, scale)
        self._keys.current = KeyPositions(key, scale)
        if cache is not None:
            store_positions(cache, self._keys.current)
        if not self.attention:
            return None
        first = _first(key, mask)
        counted = mask is None and positions.starts == (cached, 0)
        current = PassPositions(query - first, key - first, scale, counted)
        if self.grouped:
            _ = current.read  # before the blocks, whose compiled graph would end there
        return args, {**kwargs, PASS: current}

    def leave(self, output: Any) -> None:
        """Store the positions of keys in the cache that the body returns."""
        parts = output.values() if isinstance(output, Mapping) else output
        for part in parts if self._keys.current is not None and not isinstance(parts, Tensor | None) else ():
            cache = getattr(part, "self_attention_cache", part)
            if isinstance(cache, Cache):
                store_positions(cache, self._keys.current)
        if self._local.current is not None:
            self._local.current.shared.clear()
        self._local.current = self._keys.current = None

    def _unpadded(self, words: Tensor, cached: int, mask: Any) -> Positions:
        """Return the positions of the tokens of a body with biases, as the model counts them."""
        if self.biases == "tokens" and isinstance(mask, Tensor) and mask.ndim == 2:
            mask = mask[:, : cached + words.shape[1]]  # a static cache has more slots
        else:
            mask = None
        return build_positions(words.shape[:2], cached, mask=mask, device=words.device)

    def _cached_positions(self, cache: Any, cached: int, rows: int) -> Tensor | int:
        """Return the positions of the cached tokens, (batch, cached); 0 if there are none."""
        if not cached:
            return 0
        keys: KeyPositions | None = getattr(cache, "floater_keys", None)
        if keys is None:
            raise ExtendError(
                "the keys in the cache are not of this model since it was extended, as the learned keys of "
                "prefix tuning are not; begin with an empty cache, or use prompt tuning"
            )
        cached_rows, length = keys.positions.shape
        if cached_rows != rows or length < cached:
            raise ExtendError(
                f"the cache has the positions of {length} keys of {cached_rows} texts, but {cached} keys, "
                f"and {rows} texts are read; change its rows by its methods, such as batch_select_indices"
            )
        return keys.positions[:, :cached]


def _whole_ids(ids: Tensor | None) -> Tensor | None:
    """Return one whole number for each token by the `position_ids` of a model."""
    if ids is None:
        return None
    ids = ids.amax(0) if ids.ndim == 3 else ids  # time, height and width
    return ids.clamp(min=0)  # callers give padding -1, which no token attends to


def _first(key: Tensor, mask: Any) -> Tensor:
    """Return the position of the first token of each row that is not padding, (batch, 1)."""
    if isinstance(mask, Mapping):  # Transformers makes a mask for each kind of layer
        mask = mask.get("full_attention")
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 4):
        return key[:, :1]
    if mask.ndim == 4:
        mask = visible_keys(mask[:, :, -1:])[:, 0]
    visible = mask[:, : key.shape[1]].bool().expand(len(key), -1)
    return key.gather(1, visible.int().argmax(1, keepdim=True))
