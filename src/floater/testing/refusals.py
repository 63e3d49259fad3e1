"""Checks of refusals: errors of one line for options and positions that an encoding does not support."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from floater.encodings import PositionError, build
from floater.positions import Positions

_SIZES = {"dim": 8, "heads": 2, "layers": 3, "max_length": 16}


@contextmanager
def refuses(message: str) -> Iterator[None]:
    """Check that the block raises a `PositionError` of one line.

    Args:
        message: regular expression that is searched in the error's message.

    Raises:
        AssertionError: if nothing is raised, or the message is another.

    Example:
        >>> with refuses("dim is 0"):
        ...     build("alibi", **_SIZES | {"dim": 0})
    """
    try:
        yield
    except PositionError as error:
        text = str(error)
        if not re.search(message, text):
            raise AssertionError(f"refused by {text!r}, which does not match {message!r}") from error
        if len(text.splitlines()) != 1:
            raise AssertionError(f"refused by a message of several lines: {text!r}") from error
    else:
        raise AssertionError(f"not refused; expected a PositionError that matches {message!r}")


def check_refusal(
    name: Any, options: Mapping[str, Any], message: str, positions: Positions | None = None
) -> None:
    """Check that an encoding refuses options, or positions, with a `PositionError` of one line.

    Args:
        name: name of the encoding.
        options: its options, and other arguments of `floater.build`; the sizes are dim 8, 2 heads, 3 layers
            and max_length 16 by default.
        message: regular expression that is searched in the error's message.
        positions: positions that `prepare` must refuse; None if the constructor must refuse the options.

    Raises:
        AssertionError: if they are not refused, or the message is another.

    Example:
        >>> check_refusal("rotary", {"base": 1.0}, "base is 1.0; it must be above 1")
        >>> check_refusal("learned", {}, "position 16 was requested", Positions.arange(17))
    """
    arguments: dict[str, Any] = {**_SIZES, **options}
    if positions is None:
        with refuses(message):
            build(name, **arguments)
    else:
        model = build(name, **arguments)
        with refuses(message):
            model.prepare(positions)
