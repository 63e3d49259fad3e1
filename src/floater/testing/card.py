"""Checks of what an encoding says of itself: its card and its options."""

from __future__ import annotations

import inspect
import re
from typing import Any

from floater.encodings import build, options
from floater.encodings.card import CONTRACT
from floater.testing.case import Case
from floater.testing.refusals import check_refusal

_SIZES = ((8, 2, 3, 16), (16, 4, 2, 12), (24, 3, 1, 40))


def card(case: Case) -> None:
    """The card gives reasons for the exceptions, and the number of parameters with default options."""
    entry = case.encoding.card
    for item, reason in entry.exceptions.items():
        assert item in CONTRACT, f"{item!r} is not an item of the contract; there are: {', '.join(CONTRACT)}"
        assert re.fullmatch(r"[^.]{10,}", reason), (
            f"{item}: {reason!r} is not a reason in one phrase without a full stop"
        )
    for sizes in _SIZES:
        dim, heads, layers, max_length = sizes
        model = build(case.name, dim=dim, heads=heads, layers=layers, max_length=max_length)
        letters = dict(zip(("d", "h", "l", "t_max"), sizes, strict=True)) | options(case.name)
        expected = eval(entry.parameters, {"__builtins__": {}}, letters)
        size = sum(parameter.numel() for parameter in model.parameters())
        assert size == expected, f"{size} parameters; card.parameters {entry.parameters!r} is {expected}"


def options_by_type(case: Case) -> None:
    """An option that is a number or a truth value refuses lists, NaN and text, and the error names it."""
    wrong_values: tuple[Any, ...] = ([], float("nan"), "many")
    arguments = inspect.signature(case.encoding.__init__).parameters
    for option in options(case.name):
        if arguments[option].annotation in ("bool", "int", "float", bool, int, float):
            for value in wrong_values:
                check_refusal(case.name, {option: value}, f"{option} is ")
