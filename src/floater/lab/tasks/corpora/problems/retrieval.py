"""Associative recall and passkey: the answer is part of the question."""

from __future__ import annotations

import numpy as np

from floater.lab.tasks.corpora.problems.example import DIGITS, Example, named

KEY = "key"
POWER = 0.01


def recall(length: int, names: int, slots: int, random: np.random.Generator) -> Example:
    """Generate a recall of values by keys (MQAR, multi-query associative recall; Arora et al. 2023, Zoology).

    The question is "k3 v1 k0 v5", and the answer asks for every key once: "k0 v5 k3 v1", of which only the
    values are scored. In a row, as in language modelling, the value follows its query; zoology has a random
    token in its place.

    Args:
        length: number of keys, each with a different value.
        names: number of keys to choose from, and of values, each at least `length`.
        slots: number of slots of two tokens in the answer for each key. In zoology a row of n tokens and m
            keys has (n - 2 m) / 2 m of them: 1 in its longest tests, 7 in most of its training. Slots of
            queries are sampled by zoology's power law, mostly near the question; random tokens fill the
            others.
        random: generator of the example.

    Example:
        >>> example = recall(2, 9, 2, np.random.default_rng(0))
        >>> print(*example.question, "=", *example.answer)
        k4 v2 k5 v8 = k4 v2 k1 v6 k5 v8 k1 k5
        >>> [example.answer[i] for i in example.asked]
        ['v2', 'v8']
    """
    words = associations(names)
    kinds = words[:names], words[names:]
    keys, values = ([kind[i] for i in random.permutation(names)[:length].tolist()] for kind in kinds)
    pairs = list(zip(keys, values, strict=True))
    weights = np.arange(1, length * slots + 1) ** (POWER - 1)
    positions = random.choice(length * slots, size=length, replace=False, p=weights / weights.sum()).tolist()
    answer = [words[i] for i in random.integers(len(words), size=2 * length * slots).tolist()]
    for position, pair in zip(positions, pairs, strict=True):
        answer[2 * position : 2 * position + 2] = pair
    asked = sorted(2 * position + 1 for position in positions)
    return Example([token for pair in pairs for token in pair], answer, length, asked)


def passkey(length: int, words: int, digits: int, random: np.random.Generator) -> Example:
    """Generate a number hidden in filler, to repeat (Mohtashami and Jaggi 2023, "Landmark attention").

    The question is filler, "key 3 1 4 1 5", and filler. As in the paper's prompt, the filler repeats the same
    text and restarts after the number, which may be at any depth. Unlike there, the number is given once, not
    twice.

    Args:
        length: number of tokens of the question, at least `digits` + 1.
        words: number of words of the repeated text.
        digits: number of digits; 5 in the paper.
        random: generator of the example.

    Example:
        >>> example = passkey(9, 3, 2, np.random.default_rng(2))
        >>> print(*example.question, "=", *example.answer)
        w0 w1 w2 w0 w1 key 2 1 w0 = 2 1
    """
    rest = length - digits - 1
    before = int(random.integers(rest + 1))
    number = [DIGITS[digit] for digit in random.integers(10, size=digits).tolist()]
    text = named("w", words)
    parts = [[text[i % words] for i in range(size)] for size in (before, rest - before)]
    return Example([*parts[0], KEY, *number, *parts[1]], number, length)


def associations(names: int) -> list[str]:
    """Return the keys and then the values of `recall`.

    Example:
        >>> associations(2)
        ['k0', 'k1', 'v0', 'v1']
    """
    return named("k", names) + named("v", names)
