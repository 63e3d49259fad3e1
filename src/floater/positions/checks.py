"""Checks of the tensors of positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T", Tensor, Tensor | None)


def check_shapes(
    queries: Mapping[str, Tensor | None], keys: Mapping[str, Tensor | None], target_length: Tensor | None
) -> None:
    """Refuse tensors of positions whose shapes do not fit together.

    Args:
        queries: tensors over the queries by name, `query` first, (batch or 1, T).
        keys: tensors over the keys by name, `key` first, (batch or 1, S).
        target_length: lengths of the finished texts, (batch or 1,).

    Raises:
        ValueError: if a tensor has another number of dimensions, or batch sizes or lengths differ.
    """
    tensors = {**queries, **keys, "target_length": target_length}
    shapes = {name: tuple(value.shape) for name, value in tensors.items() if value is not None}
    for name, shape in shapes.items():
        wanted = "(batch or 1,)" if name == "target_length" else "(batch or 1, length)"
        if len(shape) != (1 if name == "target_length" else 2):
            raise ValueError(f"{name} is {shape}; it must be {wanted}")
    batches = [shape[0] for shape in shapes.values() if shape[0] != 1]  # symbols have no hash
    if any(size != batches[0] for size in batches):
        raise ValueError(f"the batch sizes differ: {shapes}; they must be equal or 1")
    for what, group, first in (("queries", queries, "query"), ("keys", keys, "key")):
        length = shapes[first][1]
        for name in group.keys() & shapes.keys():
            if shapes[name][1] != length:
                raise ValueError(f"{name} covers {shapes[name][1]} {what}; there are {length}")


def query_count(queries: int | None, length: int, what: str) -> int:
    """Return the number of queries, by default all columns.

    Args:
        queries: the number, if it is stated.
        length: number of columns.
        what: noun and verb of the columns, for the message, as in "the mask has".

    Raises:
        ValueError: if there are more queries than columns, or fewer than none.
    """
    queries = length if queries is None else queries
    if not 0 <= queries <= length:
        raise ValueError(f"there are {queries} queries; {what} {length} columns")
    return queries


def widened(value: T) -> T:
    """Return integers as int64: the difference of narrow ones wraps around, and uint8 would select as a mask.

    Anything else is returned as it is.

    Example:
        >>> widened(torch.tensor([3, 250], dtype=torch.uint8)).diff()
        tensor([247])
    """
    if not isinstance(value, Tensor) or value.dtype in (torch.bool, torch.int64):
        return value
    return value if value.is_floating_point() or value.is_complex() else value.long()
