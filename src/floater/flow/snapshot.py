"""Copies of the values that stored results depend on, to detect changes of those values."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Set
from functools import partial
from logging import Logger
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_ATOMS = frozenset((bool, int, str, bytes, type(None), torch.dtype, torch.device))
_NUMBERS = (int, float, complex, str, np.generic)
_NAMED = (type, FunctionType, BuiltinFunctionType, ModuleType, Logger)
# Integers of the size of an element are equal where all bits are: NaN equals NaN, and -0.0 differs from 0.0.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_HOOKS = frozenset(name for name in vars(nn.Module()) if "hooks" in name)
_MEMBERS = ("_parameters", "_buffers", "_modules")


class Derived:
    """Base class of values that are computed from others and kept; snapshots exclude them."""


class Snapshot(Derived):
    """The state of values at one time, to compare with their state later.

    Tensors are compared with copies, bit by bit and wherever they are: parameters, buffers, and tensors in
    attributes. So every write to them is noticed: through `.data`, by fused optimizers, by an exchange or a
    permutation. Modules, containers and objects are compared by what they contain, which for modules
    includes their mode (train or eval); functions, methods, classes, hooks and loggers by identity.

    These changes are not noticed: of global variables and files, of the variables that a function captured,
    and within objects that have no `__dict__`. Tensors without plain memory (sparse, quantized, distributed)
    count as changed in every comparison.

    A comparison reads every tensor and its copy once, and one number from a device other than the CPU.

    Args:
        *values: The values.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> before = Snapshot(layer)
        >>> before.matches(layer)
        True
        >>> layer.bias.data = layer.bias.data.flip(0)
        >>> before.matches(layer)
        False
    """

    def __init__(self, *values: object) -> None:
        description = _Description(values)
        self._structure = description.structure
        with torch.inference_mode(False), torch.no_grad():
            bits = map(_bits, description.tensors)
            self._copies = [None if x is None else x.clone() for x in bits]

    def matches(self, *values: object) -> bool:
        """Return whether values are the same as when the snapshot was taken."""
        description = _Description(values)
        if description.structure != self._structure:
            return False
        differences: dict[torch.device, list[Tensor]] = {}
        with torch.no_grad():
            for tensor, copy in zip(description.tensors, self._copies, strict=True):
                bits = _bits(tensor)
                if bits is None or copy is None:
                    return False
                if bits.device.type != "cpu":
                    differences.setdefault(bits.device, []).append((bits != copy).any())
                # NumPy compares several times faster than PyTorch.
                elif not np.array_equal(bits.numpy(), copy.numpy()):
                    return False
            return not any(bool(torch.stack(on_device).any()) for on_device in differences.values())


def _bits(tensor: Tensor) -> Tensor | None:
    """Return the elements of a tensor as integers, in its memory; None if it has no plain memory."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return None
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    bits = tensor.view(_INTEGERS[tensor.element_size()])
    return bits if type(bits) is Tensor else None  # another class may keep its elements elsewhere


class _Same:
    """An object that is compared by identity, and kept alive, as a deleted object's identity is reused."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class _Description:
    """A description of values: their structure without the elements of tensors, and these tensors."""

    def __init__(self, values: Iterable[object]) -> None:
        self.tensors: list[Tensor] = []
        # The objects are kept alive, as a deleted object's identity is reused.
        self._seen: dict[int, tuple[int, object]] = {}
        self.structure = self._all(values)

    def _all(self, values: Iterable[object]) -> Hashable:
        return tuple(map(self._of, values))

    def _of(self, value: Any) -> Hashable:
        kind = type(value)
        if kind in _ATOMS:
            return kind, value
        if isinstance(value, _NUMBERS):
            return kind, repr(value)  # exact; differs for 0.0 and -0.0, which are equal
        if isinstance(value, Derived):
            return (kind,)
        if id(value) in self._seen:
            return self._seen[id(value)][0]
        self._seen[id(value)] = len(self._seen), value
        if isinstance(value, Tensor):
            self.tensors.append(value)
            return kind, value.shape, value.dtype, value.device
        if isinstance(value, nn.Module):
            return kind, self._members(value), self._attributes(value)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return kind, value.dtype, value.shape, value.tobytes()
        if isinstance(value, Mapping):
            return kind, self._all(value.keys()), self._all(value.values())
        if isinstance(value, list | tuple | Set | deque | np.ndarray):
            return kind, self._all(value)
        if isinstance(value, partial):
            return kind, self._all((value.func, value.args, value.keywords))
        if isinstance(value, MethodType):
            return _Same(value.__func__), _Same(value.__self__)
        if isinstance(value, _NAMED) or not hasattr(value, "__dict__"):
            return _Same(value)
        return _Same(value), self._all(vars(value)), self._all(vars(value).values())

    def _members(self, module: nn.Module) -> Hashable:
        # By attribute, as a scripted module has them elsewhere than in its `__dict__`.
        members = (getattr(module, name).items() for name in _MEMBERS)
        return tuple((name, self._of(member)) for group in members for name, member in group)

    def _attributes(self, module: nn.Module) -> Hashable:
        attributes = {name: value for name, value in vars(module).items() if name not in _HOOKS or value}
        return tuple(
            (name, tuple(map(_Same, value.values())) if name in _HOOKS else self._of(value))
            for name, value in attributes.items()
            if name not in _MEMBERS
        )
