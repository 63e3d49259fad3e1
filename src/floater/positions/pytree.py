"""Positions as a pytree, so that compiled and exported programs take them as inputs."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from floater.structures import Structure

Context = tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]


def register(kind: type[Any], *names: str) -> None:
    """Register a class whose tensors are the leaves; the rest is part of the tree's structure.

    Args:
        kind: The class.
        names: Its attributes.

    Example:
        >>> from floater.positions import Positions
        >>> doubled = pytree.tree_map(lambda leaf: 2 * leaf, Positions.arange(3))
        >>> doubled.key, doubled.below
        (tensor([[0, 2, 4]]), 3)
    """
    pytree.register_pytree_node(
        kind,
        partial(_flatten, names),
        partial(_unflatten, kind),
        serialized_type_name=f"{kind.__module__}.{kind.__name__}",
        flatten_with_keys_fn=partial(_flatten_with_keys, names),
        to_dumpable_context=json.dumps,
        from_dumpable_context=_load,
    )


def _flatten(attributes: tuple[str, ...], part: Any) -> tuple[list[Any], Context]:
    values = {name: getattr(part, name) for name in attributes}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor | Structure)}
    plain = tuple((name, value) for name, value in values.items() if name not in tensors)
    return list(tensors.values()), (tuple(tensors), plain)


def _flatten_with_keys(attributes: tuple[str, ...], part: Any) -> tuple[list[Any], Context]:
    children, context = _flatten(attributes, part)
    return list(zip(map(pytree.GetAttrKey, context[0]), children, strict=True)), context


def _unflatten(kind: type[Any], children: Any, context: Context) -> Any:
    """Return a value with these fields, unchecked, as leaves may be anything while a tree is mapped."""
    names, plain = context
    part = object.__new__(kind)
    for name, value in (*zip(names, children, strict=True), *plain):
        object.__setattr__(part, name, value)
    return part


def _load(text: str) -> Context:
    names, plain = json.loads(text)
    return tuple(names), tuple((name, tuple(x) if isinstance(x, list) else x) for name, x in plain)
