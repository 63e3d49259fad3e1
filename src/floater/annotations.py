"""Conversion of values by type annotations, for settings, options of encodings and the command line.

It needs the standard library alone. Callers write their own messages: settings name types and keys, the
catalogue describes valid values in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from numbers import Integral, Real
from pathlib import PurePath
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin


class Mismatch(ValueError):
    """A value that its annotation does not allow.

    Attributes:
        annotation: The annotation, such as ``int`` for an element of ``list[int]``.
        value: The value.
        path: The name of the value, such as ``"steps[1]"``.
    """

    def __init__(self, annotation: Any, value: Any, path: str) -> None:
        super().__init__(f"{path} is {value!r}, which is not of type {_name(annotation)}")
        self.annotation, self.value, self.path = annotation, value, path


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def members_of(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union; of any other annotation, the annotation itself.

    Example:
        >>> members_of(int | None), members_of(str)
        ((<class 'int'>, <class 'NoneType'>), (<class 'str'>,))
    """
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def as_scalar(annotation: Any, value: Any) -> Any:
    """Return a value as a type without parts: a number, a text, a path, a literal or any other class.

    A whole number counts as a float, and a text as a path; a boolean is not a number.

    Args:
        annotation: A class or a ``Literal``.
        value: The value.

    Raises:
        ValueError: If the annotation does not allow the value.

    Example:
        >>> as_scalar(float, 1)
        1.0
        >>> as_scalar(int, True)
        Traceback (most recent call last):
        ValueError: True is not of type int
    """
    if get_origin(annotation) is Literal:
        if any(type(value) is type(literal) and value == literal for literal in get_args(annotation)):
            return value
    elif annotation in (int, float):
        if isinstance(value, Integral if annotation is int else Real) and not isinstance(value, bool):
            with suppress(OverflowError):  # a whole number beyond the range of floats
                return annotation(value)
    elif isinstance(annotation, type):
        if isinstance(value, annotation):
            return value
        if issubclass(annotation, PurePath) and isinstance(value, str):
            return annotation(value)
    raise ValueError(f"{value!r} is not of type {_name(annotation)}")


def convert(
    annotation: Any, value: Any, path: str = "value", scalar: Callable[[Any, Any], Any] = as_scalar
) -> Any:
    """Return a value as its annotation has it, such as a tuple of floats for a list of whole numbers.

    Args:
        annotation: Classes, literals, and unions, lists, tuples, sequences and mappings of annotations. In a
            union the value's own type is tried first, so that ``float | str`` leaves the text ``"1"`` alone.
        value: The value.
        path: The name of the value, which `Mismatch` extends by the index or the key of a part.
        scalar: Function of a class or literal and a value, which converts the parts; see `as_scalar`.

    Raises:
        Mismatch: If the annotation does not allow the value or a part of it.

    Example:
        >>> convert(tuple[float, ...] | None, [1, 2])
        (1.0, 2.0)
        >>> convert(dict[str, list[int]], {"steps": [1, "b"]}, "milestones")
        Traceback (most recent call last):
        floater.annotations.Mismatch: milestones.steps[1] is 'b', which is not of type int
    """
    members = members_of(annotation)
    kind, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if annotation is Any:
        return value
    if len(members) > 1:
        for member in sorted(members, key=lambda member: member is not type(value)):
            with suppress(Mismatch):
                return convert(member, value, path, scalar)
    elif kind in (list, tuple, Sequence):
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            fixed = kind is tuple and arguments and arguments[-1] is not ...
            kinds = arguments if fixed else (arguments or (Any,))[:1] * len(value)
            if len(kinds) == len(value):
                parts = [
                    convert(part_kind, part, f"{path}[{i}]", scalar)
                    for i, (part_kind, part) in enumerate(zip(kinds, value, strict=True))
                ]
                return tuple(parts) if kind is tuple else parts
    elif kind in (dict, Mapping):
        if isinstance(value, Mapping):
            key_kind, part_kind = arguments or (Any, Any)
            keys = [convert(key_kind, key, f"key of {path}", scalar) for key in value]
            return {key: convert(part_kind, value[key], f"{path}.{key}", scalar) for key in keys}
    else:
        with suppress(ValueError):
            return scalar(annotation, value)
    raise Mismatch(annotation, value, path)
