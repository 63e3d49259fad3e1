"""Which attention modules of a model rotate, and by which frequencies, found by a dry run of its shapes."""

from __future__ import annotations

import copy
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from floater.errors import first_line
from floater.pretrained.clocks import ANGLES, LAYOUTS, Rotation
from floater.pretrained.extending.dry_run import DryRun
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.rotary import rotary_parts
from floater.pretrained.families import PlugError
from floater.pretrained.find import is_inside, reads_text, text_advice
from floater.pretrained.host import part_at

_LENGTH = 10
_TOLERANCE = 1e-5
_SUFFIX, _ORIGINAL = "inv_freq", "original_"


@dataclass
class _Call:
    """Arguments of an attention module in a dry run, and whether its output depends on its angles."""

    hidden: Any
    angles: Any
    frequencies: frozenset[str]
    rotates: bool = False


@dataclass
class _Run:
    """The calls that hooks record while a dry run runs: of attention modules, and of rotary modules.

    Args:
        shapes: dispatch mode of the dry run, which marks tensors.
        calls: calls of each module that gets angles, by its name.
        rotaries: arguments of the rotary module that reads each buffer of frequencies, by the buffer's name.
    """

    shapes: Any
    calls: dict[str, list[_Call]] = field(default_factory=dict)
    rotaries: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def begin(self, *_: Any) -> None:
        """Forget an attempt that failed."""
        self.calls.clear()
        self.rotaries.clear()

    def enter(self, path: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (angles := kwargs.get(ANGLES)) is None:
            return
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else next(iter(args), None)
        names = frozenset(name for name in self.shapes.marks(angles) if name.endswith(_SUFFIX))
        self.calls.setdefault(path, []).append(_Call(hidden, angles, names))
        for each in pytree.tree_leaves(angles):
            self.shapes.mark(each, path)

    def leave(self, path: str, _: nn.Module, args: Any, output: Any) -> None:
        if path in self.calls:
            self.calls[path][-1].rotates = path in self.shapes.marks(output)

    def rotated(self, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        for name in self.shapes.marks(output):
            self.rotaries[name] = args, kwargs


def find_rotations(model: nn.Module) -> tuple[str, int, list[Rotation]]:
    """Return the rotations of the one body of a model that reads text and rotates queries and keys.

    A model without weights is built from the configuration and run; see `DryRun`. An attention module rotates
    if its output depends on the cosines and sines among its arguments.

    Args:
        model: model that is or contains models of Transformers.

    Returns:
        The name of the body in the model, its number of blocks, and the rotations in the order of its blocks.

    Raises:
        PlugError: if the model has not one such body, or rotates in another way.
    """
    try:
        dry_run = DryRun(model)
    except ExtendError as error:
        raise PlugError(str(error)) from error
    bodies = [
        path
        for path, part in dry_run.parts.items()
        if isinstance(part, PreTrainedModel) and reads_text(part) and rotary_parts(part)
    ]
    if len(bodies) != 1:
        raise PlugError(
            f"a clock turns the rotation of one model of Transformers that reads text; this "
            f"{type(model).__name__} has {len(bodies) or 'none'}{text_advice(model)}"
        )
    (path,) = bodies
    _check_cache(dry_run.parts[path])
    run, name = _observed(dry_run, path), type(dry_run.parts[path]).__name__
    attention = _innermost(run.calls)
    depth = int(getattr(dry_run.parts[path].config, "num_hidden_layers", len(attention)))
    rotations = []
    for order, each in enumerate(attention):
        call, *more = run.calls[each]
        if not any(one.rotates for one in (call, *more)) or part_at(model, each) is None:
            continue
        block = getattr(dry_run.parts[each], "layer_idx", None)
        block = order if block is None else block
        reason = "is run several times in a pass" if more or block not in range(depth) else _reason(call)
        if not reason:
            (frequencies,) = call.frequencies
            layout = _layout(dry_run, frequencies, run.rotaries[frequencies])
            if layout is not None:
                rotations.append(Rotation(each, block, call.hidden.shape[-1], frequencies, layout))
                continue
            reason = "has angles that are not those of the frequencies, once or twice"
        raise PlugError(f"'{each}' of {name} {reason}; a clock cannot turn its rotation")
    if not rotations:
        raise PlugError(
            f"no attention module of {name} rotates by '{ANGLES}' among its arguments; a clock cannot turn "
            "its rotation"
        )
    return path, depth, sorted(rotations, key=lambda each: each.block)


def _check_cache(body: Any) -> None:
    """Refuse a body whose caches cannot hold the sums of a clock for each block."""
    name = type(body).__name__
    if getattr(body.config, "num_kv_shared_layers", 0):
        raise PlugError(
            f"blocks of {name} read the keys of other blocks (num_kv_shared_layers is "
            f"{body.config.num_kv_shared_layers}), turned by the clocks of those; a clock cannot turn them"
        )
    for kind in vars(sys.modules[type(body).__module__]).values():
        if isinstance(kind, type) and issubclass(kind, DynamicCache) and kind is not DynamicCache:
            raise PlugError(
                f"{name} defines the cache {kind.__name__}, which cannot hold the sums of a clock"
            )


def _innermost(paths: Collection[str]) -> list[str]:
    """Return the names of modules that contain no other of them."""
    return [path for path in paths if not any(other != path and is_inside(other, path) for other in paths)]


def _observed(dry_run: DryRun, path: str) -> _Run:
    """Run the body of a name, and return what its modules got."""
    run = _Run(dry_run.shapes)
    body = dry_run.parts[path]
    body.register_forward_pre_hook(run.begin)
    marks = {}
    for holder in (f"{path}.{name}".strip(".") for name in rotary_parts(body)):
        dry_run.parts[holder].register_forward_hook(run.rotated, with_kwargs=True)
        for name, _ in dry_run.parts[holder].named_buffers(recurse=False):
            if name.endswith(_SUFFIX):  # a method may restore the original ones
                marks[f"{holder}.{name}"] = f"{holder}.{name.replace(_ORIGINAL, '')}"
    dry_run.mark(marks)
    for name, part in dry_run.parts.items():
        if name != path and is_inside(name, path):
            part.register_forward_pre_hook(partial(run.enter, name), with_kwargs=True)
            part.register_forward_hook(partial(run.leave, name))
    try:
        dry_run.runner(path, _LENGTH, image=False)
    except ExtendError as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise PlugError(
            f"how {type(body).__name__} rotates cannot be seen, as it does not run on tokens alone "
            f"({first_line(cause)}); a clock cannot turn its rotation"
        ) from error
    return run


def _reason(call: _Call) -> str:
    """Return why a clock cannot turn the angles of a call; "" if it can."""
    angles, hidden = call.angles, call.hidden
    if not isinstance(angles, tuple) or len(angles) != 2 or any(each.is_complex() for each in angles):
        return f"is not given a pair of cosines and sines by the name '{ANGLES}'"
    if not isinstance(hidden, Tensor) or hidden.ndim != 3:
        return "has no input of shape (batch, tokens, width)"
    if any(each.shape[:-1] != hidden.shape[:-1] for each in angles):
        return f"has cosines of shape {tuple(angles[0].shape)}, and an input of {tuple(hidden.shape)}"
    if not call.frequencies:
        return "rotates by frequencies that are computed in each pass"
    return "" if len(call.frequencies) == 1 else f"rotates by {len(call.frequencies)} sets of frequencies"


def _layout(dry_run: DryRun, frequencies: str, arguments: tuple[Any, Any]) -> str | None:
    """Return the layout of the cosines and sines of a module with frequencies; None if it is another.

    A copy of the module reads the position 1 with frequencies between 0 and 1, so that its angles are these.
    """
    holder, _, name = frequencies.rpartition(".")
    rotary = copy.deepcopy(dry_run.parts[holder])
    count = len(getattr(rotary, name))
    with torch.device("cpu"), torch.no_grad():  # models are also plugged while they load, without values
        values = torch.arange(1.0, 1 + count) / (1 + count)
        attributes = {**dict(rotary.named_buffers(recurse=False)), **vars(rotary)}
        for each, tensor in attributes.items():
            if each.endswith(_SUFFIX) and isinstance(tensor, Tensor) and len(tensor) == count:
                setattr(rotary, each, values.clone())
        args, kwargs = pytree.tree_map_only(Tensor, _ones, arguments)
        try:
            cosines, sines = rotary.forward(*args, **kwargs)
        except Exception:  # any error of any model
            return None
        angles = torch.atan2(sines, cosines).flatten(0, -2)[0]
        for layout, repeat in LAYOUTS.items():
            expected = repeat(values)
            if angles.shape == expected.shape and torch.allclose(angles, expected, atol=_TOLERANCE):
                return layout
    return None


def _ones(argument: Tensor) -> Tensor:
    """Return an argument at the position 1; cosines in half precision would not tell angles apart."""
    dtype = torch.float32 if argument.is_floating_point() else argument.dtype
    return torch.ones(argument.shape, dtype=dtype)
