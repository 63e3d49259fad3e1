"""Checks of arguments: one of a few valid values, and a number of positions."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def check_choice(argument: str, value: str, valid: Iterable[str]) -> None:
    """Check that a string argument is one of the valid names.

    Args:
        argument: Description of the argument, for the message.
        value: The value of the argument.
        valid: The valid names.

    Raises:
        ValueError: if `value` is not valid; the message lists the valid names, similar ones first.

    Example:
        >>> check_choice("solver method", "rk5", ("dopri5", "rk4"))
        Traceback (most recent call last):
        ValueError: unknown solver method 'rk5'; valid: 'rk4', 'dopri5'
    """
    names = list(valid)
    if value not in names:
        alike = get_close_matches(str(value), names)
        ordered = [*alike, *(name for name in names if name not in alike)]
        raise ValueError(f"unknown {argument} {value!r}; valid: {', '.join(map(repr, ordered))}")


def check_length(length: object) -> None:
    """Check a number of positions.

    Raises:
        ValueError: if it is not a whole number of at least 1.

    Example:
        >>> check_length(0)
        Traceback (most recent call last):
        ValueError: length must be a whole number of at least 1 position, got 0
    """
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise ValueError(f"length must be a whole number of at least 1 position, got {length!r}")
