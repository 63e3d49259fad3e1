"""Example of a generated problem: a question and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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


class PositionedExample(NamedTuple):
    """A question whose answer depends on fields of `Positions`, beside its tokens.

    Args:
        question: as in `Example`.
        answer: as in `Example`.
        length: as in `Example`.
        positions: values of the question by field: "parents" (the index of each token's parent in a tree, -1
            for the root), "edges" (pairs of tokens that a graph connects), "language" (of all tokens),
            "reordered" (the index in the answer at which each token is written), "target_length" (whether
            the model reads the length of the row).
        asked: as in `Example`.
    """

    question: list[str]
    answer: list[str]
    length: int
    positions: Mapping[str, Any]
    asked: Sequence[int] | None = None


AnyExample = Example | PositionedExample


def named(letter: str, count: int) -> list[str]:
    """Return words of a letter and a number.

    Example:
        >>> named("x", 3)
        ['x0', 'x1', 'x2']
    """
    return [f"{letter}{i}" for i in range(count)]
