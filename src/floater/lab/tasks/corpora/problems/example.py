"""Example of a generated problem: a question and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

DIGITS = tuple(map(str, range(10)))
EQUALS = "="


class Example(NamedTuple):
    """A question and its answer.

    Args:
        question: tokens of the question.
        answer: tokens of the answer.
        length: length in the unit of the problem, used for bins of length.
        asked: indices of the scored tokens of the answer, if the others are given; None for all tokens and
            the end of the answer.
    """

    question: list[str]
    answer: list[str]
    length: int
    asked: Sequence[int] | None = None


def named(letter: str, count: int) -> list[str]:
    """Return words of a letter and a number.

    Example:
        >>> named("x", 3)
        ['x0', 'x1', 'x2']
    """
    return [f"{letter}{i}" for i in range(count)]
