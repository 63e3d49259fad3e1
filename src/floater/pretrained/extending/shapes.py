"""A dispatch mode that computes the shapes of floating-point tensors in place of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_BYTES = 1 << 26
"""Size of the largest tensor of whole numbers that is computed; of larger ones only the shape is known."""

_INDICES: Mapping[Any, Callable[..., Iterator[tuple[Tensor, int]]]] = {
    _ATEN.embedding.default: lambda table, index, *_: iter([(index, len(table))]),
    _ATEN.index_select.default: lambda x, dim, index: iter([(index, x.shape[dim])]),
    _ATEN.gather.default: lambda x, dim, index, **_: iter([(index, x.shape[dim])]),
    _ATEN.index.Tensor: lambda x, indices: (
        (index, x.shape[dim])
        for dim, index in enumerate(indices)
        if index is not None and index.dtype != torch.bool
    ),
}
"""By operation: the indices among its arguments, each with the number of entries that it may choose from."""


_BY_MASK = {_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default}
"""Operations whose indices may be truth values."""

_FILLS = {_ATEN.normal_.default, _ATEN.uniform_.default, _ATEN.fill_.Scalar, _ATEN.zero_.default}
"""Operations that give a tensor other values, of whatever shape it is."""

_COUNTED = {_ATEN.linspace.default, _ATEN.arange.default, _ATEN.arange.start, _ATEN.arange.start_step}
"""Operations whose fractions have values, too: constructors read rates of layers from them."""

_RESULTS: dict[Any, tuple[type | None, list[tuple[Any, ...]]]] = {}
"""Results on the device "meta" by operation and arguments, as layers repeat them.

Many operations decompose in Python there, which takes ten times as long as to look up what they return.
"""

_ENTRIES = 1 << 14
"""Largest number of stored results."""


class Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Compute whole numbers and truth values, and of floating-point tensors their shapes alone.

    Floating-point tensors are on the device "meta". Indices are checked against the tables that they choose
    from, which "meta" does not do. Whole numbers that depend on floating-point ones, such as the experts of
    tokens, are 0. Each tensor carries the names of the marked tensors that it is computed from.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # storages are kept alive, as their ids are the keys
        self._marks: dict[int, tuple[Any, frozenset[str]]] = {}
        self.first: dict[str, int] = {}

    def mark(self, tensor: Tensor, *names: str) -> None:
        """Mark a tensor, and what is computed from it."""
        storage = tensor.untyped_storage()
        self._marks[storage._cdata] = storage, self.marks(tensor).union(names)

    def marks(self, value: Any) -> frozenset[str]:
        """Return the names of the marked tensors that the tensors in a value are computed from."""
        names = frozenset[str]()
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, Tensor):
                names |= self._marks.get(leaf.untyped_storage()._cdata, (None, frozenset()))[1]
        return names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FILLS and args[0].is_meta:
            return args[0]
        tensors = _tensors((args, *kwargs.values()))
        result = self._result(func, args, kwargs, tensors)
        if self._marks and (names := self.marks(tensors)):
            for each in _tensors(result):
                self.mark(each, *names)
        return result

    def _result(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        has_values, traits = not any(tensor.is_meta for tensor in tensors), _traits(func)
        if func is _ATEN._local_scalar_dense.default and not has_values:
            return torch.zeros((), dtype=args[0].dtype).item()
        for index, count in _INDICES[func](*args, **kwargs) if func in _INDICES else ():
            self._check(index, count, args[0])
        if "device" in kwargs or (not tensors and traits.device):
            kwargs = {**kwargs, "device": torch.device("meta")}
        if has_values and traits.by_values:
            return func(*args, **kwargs)
        if func is _ATEN.split_with_sizes.default and not any(args[1]):
            # numbers that depend on values, such as those of tokens of experts, are 0: the first has all
            args = (args[0], [args[0].shape[args[2] if len(args) > 2 else 0], *args[1][1:]], *args[2:])
        # nothing is chosen by unknown truth values
        if func is _ATEN.nonzero.default and not has_values:
            return torch.zeros(0, args[0].ndim, dtype=torch.long)
        if func in _BY_MASK and not has_values:
            args = (args[0], [each for index in args[1] for each in _chosen(index)], *args[2:])
        shapes = args, kwargs
        if not all(tensor.is_meta for tensor in tensors):
            shapes = pytree.tree_map_only(Tensor, lambda x: x if x.is_meta else x.to("meta"), shapes)
        result = func(*shapes[0], **shapes[1]) if traits.aliases else _on_meta(func, *shapes)
        outputs = _tensors(result)
        small = all(leaf.numel() * leaf.element_size() <= _BYTES for leaf in outputs)
        if has_values and small and (tensors or func in _COUNTED or not any(map(_has_fractions, outputs))):
            if "device" in kwargs:
                kwargs = {**kwargs, "device": torch.device("cpu")}
            return func(*args, **kwargs)
        if traits.mutable:
            return pytree.tree_map_only(Tensor, lambda x: args[0] if x is shapes[0][0] else x, result)
        if not small or all(map(_has_fractions, outputs)):
            return result
        return pytree.tree_map_only(
            Tensor, lambda x: x if _has_fractions(x) else torch.zeros(x.shape, dtype=x.dtype), result
        )

    def _check(self, index: Tensor, count: int, table: Tensor) -> None:
        if index.is_meta or not index.numel():
            return
        low, high = int(index.min()), int(index.max())
        if low < -count or high >= count:
            raise IndexError(f"index {low if low < -count else high} is out of range for {count} entries")
        for name in self.marks(table):
            self.first.setdefault(name, int(index.flatten()[0]))


class _Traits(NamedTuple):
    """Properties of an operation: device argument, shapes that depend on values, mutation, aliasing."""

    device: bool
    by_values: bool
    mutable: bool
    aliases: bool


@cache
def _traits(func: Any) -> _Traits:
    schema = func._schema
    return _Traits(
        any(each.name == "device" for each in schema.arguments),
        not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}.isdisjoint(func.tags),
        schema.is_mutable,
        any(each.alias_info is not None for each in schema.arguments),
    )


def _on_meta(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the new tensors that an operation returns for tensors on the device "meta"."""
    key = func, torch.get_default_dtype(), _key(args), _key(tuple(kwargs.items()))
    try:
        stored = _RESULTS.get(key)
    except TypeError:  # an argument without a hash
        return func(*args, **kwargs)
    if stored is not None:
        tensors = [
            torch.empty_strided(size, stride, dtype=dtype, device="meta") for size, stride, dtype in stored[1]
        ]
        return tensors[0] if stored[0] is None else stored[0](tensors)
    result = func(*args, **kwargs)
    kind = None if isinstance(result, Tensor) else type(result)
    outputs = [result] if kind is None else result
    if kind in (None, tuple, list) and all(isinstance(each, Tensor) for each in outputs):
        storages = {each.untyped_storage()._cdata for each in _tensors((args, *kwargs.values()))}
        if storages.isdisjoint(each.untyped_storage()._cdata for each in outputs):
            if len(_RESULTS) >= _ENTRIES:
                _RESULTS.clear()
            _RESULTS[key] = kind, [(each.shape, each.stride(), each.dtype) for each in outputs]
    return result


def _key(value: Any) -> Any:
    """Return what the shape of a result depends on in an argument, for a table of results."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    return tuple(map(_key, value)) if isinstance(value, list | tuple) else (type(value), value)


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors among the arguments or results of an operation, which are at most in lists."""
    if isinstance(value, Tensor):
        return [value]
    return [x for each in value for x in _tensors(each)] if isinstance(value, list | tuple) else []


def _chosen(index: Tensor | None) -> list[Tensor | None]:
    if index is None or index.dtype != torch.bool:
        return [index]
    return [torch.zeros(0, dtype=torch.long)] * index.ndim if index.is_meta else [*index.nonzero().unbind(1)]


def _has_fractions(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()
