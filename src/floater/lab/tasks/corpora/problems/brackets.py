"""Brackets to close: Dyck and Shuffle languages."""

from __future__ import annotations

import numpy as np

from floater.lab.tasks.corpora.problems.example import Example

BRACKETS = ("()", "[]", "{}", "<>")
UNCLOSED = 4


def dyck(length: int, nested: bool, random: np.random.Generator) -> Example:
    """Generate a prefix of a balanced word, whose open brackets the answer closes.

    BIG-bench's "dyck_languages" (Suzgun et al. 2019, "Memory-augmented recurrent neural networks can learn
    generalized Dyck languages"): four kinds of brackets, and the answer closes all open ones. Nested prefixes
    of the same length and number of open brackets are equally likely.

    Args:
        length: number of brackets of the question. One to four are open at its end: an even number after an
            even length, an odd one after an odd length.
        nested: True to close the last opened bracket first (Dyck-4). False allows the kinds to cross, as in
            "( [ )" (Shuffle-4 of BIG-bench's "dynamic_counting"); the answer then has the kinds in the order
            of `BRACKETS`.
        random: generator of the example.

    Example:
        >>> for nested in (True, False):
        ...     example = dyck(8, nested, np.random.default_rng(3))
        ...     print(*example.question, "=", *example.answer)
        ( ) ( ( [ ] ) [ = ] )
        ( ) ( ( [ ) ] { = ) }
    """
    choices = most_unclosed(length)
    height = choices - 2 * int(random.integers((choices + 1) // 2))
    unclosed: list[int] = []
    question = []
    for opens in _path(length, height, random):
        if opens:
            unclosed.append(int(random.integers(len(BRACKETS))))
            question.append(BRACKETS[unclosed[-1]][0])
        else:
            last = -1 if nested else int(random.integers(len(unclosed)))
            question.append(BRACKETS[unclosed.pop(last)][1])
    closing = unclosed[::-1] if nested else sorted(unclosed)
    return Example(question, [BRACKETS[kind][1] for kind in closing], length)


def most_unclosed(length: int) -> int:
    """Return the maximum number of open brackets after a number of brackets.

    Example:
        >>> [most_unclosed(length) for length in (1, 2, 3, 4, 5, 6)]
        [1, 2, 3, 4, 3, 4]
    """
    most = min(UNCLOSED, length)
    return most - (length - most) % 2


def _path(length: int, height: int, random: np.random.Generator) -> list[bool]:
    """Return a uniformly random path of steps up (True) and down from 0 to a height, never below 0."""
    steps = []
    for left in range(length, 0, -1):
        # Backwards, from the height to 0. By the ballot theorem (h + 1) / (r + 1) C(r + 1, (r - h) / 2) paths
        # lead from h to 0 in r steps, and this share of them begins with a step down.
        down = random.random() < height * (left + height + 2) / (2 * left * (height + 1))
        steps.append(bool(down))
        height += -1 if down else 1
    return steps[::-1]
