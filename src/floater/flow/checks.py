"""Checks of arguments, one of a few valid values and whole numbers, and the names of the solvers' methods."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

ADAPTIVE_METHODS = ("dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun")
# torchdiffeq's Adams methods are excluded: they assume steps of equal length, which ours are not.
FIXED_STEP_METHODS = ("rk4", "midpoint", "euler", "heun2", "heun3")


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


def is_count(value: object) -> bool:
    """Return whether something is a whole number of at least 1, of Python's own type.

    Example:
        >>> is_count(2), is_count(True), is_count(2.0), is_count(0)
        (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_length(length: object) -> None:
    """Check a number of positions.

    Raises:
        ValueError: if it is not a whole number of at least 1.

    Example:
        >>> check_length(0)
        Traceback (most recent call last):
        ValueError: length must be a whole number of at least 1 position, got 0
    """
    if not is_count(length):
        raise ValueError(f"length must be a whole number of at least 1 position, got {length!r}")
