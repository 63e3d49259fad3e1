"""Checks of the options of position models."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from floater.encodings.errors import PositionError


def one_of(name: str, value: Any, valid: tuple[Any, ...]) -> None:
    """Refuse an option's value that is not one of the valid ones.

    Raises:
        PositionError: if `value` is not among `valid`.

    Example:
        >>> one_of("depth", 3, (1, 2))
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: depth is 3; it must be one of 1, 2
    """
    if value not in valid:
        raise PositionError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, valid))}")


def is_number(value: Any) -> bool:
    """Return whether something is a finite real number.

    Example:
        >>> [is_number(value) for value in (2, 0.5, True, "2", math.nan, math.inf)]
        [True, True, False, False, False, False]
    """
    real = isinstance(value, Real) and not isinstance(value, bool)
    return real and value == value and value not in (math.inf, -math.inf)


def is_whole(value: Any) -> bool:
    """Return whether something is a whole number, of a type that indexes.

    Example:
        >>> is_whole(2), is_whole(2.0), is_whole(True)
        (True, False, False)
    """
    return is_number(value) and isinstance(value, Integral)


def at_least_one(**options: float | None) -> None:
    """Refuse options below 1; None, a default, is allowed.

    Raises:
        PositionError: if an option is below 1; the message names the first.

    Example:
        >>> at_least_one(width=0)
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: width is 0; it must be at least 1
    """
    _at_least(1, options)


def at_least_zero(**options: float | None) -> None:
    """Refuse options below 0, and NaN; None, a default, is allowed.

    Raises:
        PositionError: if an option is below 0; the message names the first.

    Example:
        >>> at_least_zero(std=-0.1)
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: std is -0.1; it must be at least 0
    """
    _at_least(0, options)


def probability(**options: float) -> None:
    """Refuse options that are no probability of dropping a component: below 0, or 1 and above.

    Raises:
        PositionError: if an option is not in [0, 1); the message names the first.

    Example:
        >>> probability(dropout=1.0)
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: dropout is 1.0; it must be at least 0 and below 1
    """
    for name, value in options.items():
        if not 0 <= value < 1:
            raise PositionError(f"{name} is {value}; it must be at least 0 and below 1")


def _at_least(least: int, options: dict[str, float | None]) -> None:
    for name, value in options.items():
        if value is not None and not value >= least:
            raise PositionError(f"{name} is {value}; it must be at least {least}")


def chosen_blocks(blocks: str | list[int] | tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Return the block indices of "input", "all" or a list of indices.

    Raises:
        PositionError: if a block does not exist.

    Example:
        >>> chosen_blocks("all", 3), chosen_blocks("input", 3), chosen_blocks([0, 2], 3)
        ((0, 1, 2), (0,), (0, 2))
    """
    if blocks == "all":
        return tuple(range(layers))
    if blocks == "input":
        return (0,)
    if not isinstance(blocks, list | tuple) or not all(type(block) is int for block in blocks):
        raise PositionError(f"blocks is {blocks!r}; it must be 'input', 'all' or a list of block indices")
    chosen = tuple(sorted(set(blocks)))
    if not chosen or chosen[0] < 0 or chosen[-1] >= layers:
        raise PositionError(f"blocks is {blocks}; there are blocks 0 to {layers - 1}")
    return chosen
