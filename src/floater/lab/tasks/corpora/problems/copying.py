"""Copy, reverse and sort: the symbols of the question in some order; and a symbol missing from a copy."""

from __future__ import annotations

import numpy as np

from floater.lab.tasks.corpora.problems.example import Example

MISSING, FILLER = "?", "_"


def copy(length: int, symbols: int, distinct: bool, random: np.random.Generator) -> Example:
    """Generate symbols to copy.

    Args:
        length: number of symbols.
        symbols: number of different symbols, at least `length` if they are `distinct`.
        distinct: True for symbols that all differ.
        random: generator of the example.

    Example:
        >>> copy(3, 2, False, np.random.default_rng(0))
        Example(question=['1', '1', '1'], answer=['1', '1', '1'], length=3, asked=None)
    """
    example = _symbols(length, symbols, distinct, random)
    return Example(example, example, length)


def reverse(length: int, symbols: int, distinct: bool, random: np.random.Generator) -> Example:
    """Generate symbols to reverse; the arguments are those of `copy`.

    Example:
        >>> reverse(3, 9, False, np.random.default_rng(0)).answer
        ['4', '5', '7']
    """
    example = _symbols(length, symbols, distinct, random)
    return Example(example, example[::-1], length)


def sort(length: int, symbols: int, distinct: bool, random: np.random.Generator) -> Example:
    """Generate symbols, which are numbers, to sort; the arguments are those of `copy`.

    Example:
        >>> example = sort(3, 9, False, np.random.default_rng(0))
        >>> example.question, example.answer
        (['7', '5', '4'], ['4', '5', '7'])
    """
    example = _symbols(length, symbols, distinct, random)
    return Example(example, sorted(example, key=int), length)


def missing_duplicate(length: int, random: np.random.Generator) -> Example:
    """Generate bits written twice, one of them hidden, and ask for that bit (Delétang et al. 2023).

    Args:
        length: number of tokens, at least 2; of an odd number the last is a filler.
        random: generator of the example.

    Example:
        >>> example = missing_duplicate(7, np.random.default_rng(0))
        >>> print(*example.question, "|", *example.answer)
        1 ? 1 1 1 1 _ | 1
    """
    bits = list(map(str, random.integers(2, size=length // 2).tolist()))
    hidden = int(random.integers(2 * len(bits)))
    question = bits + bits + [FILLER] * (length % 2)
    answer, question[hidden] = question[hidden], MISSING
    return Example(question, [answer], length)


def _symbols(length: int, symbols: int, distinct: bool, random: np.random.Generator) -> list[str]:
    drawn = random.permutation(symbols)[:length] if distinct else random.integers(symbols, size=length)
    return list(map(str, drawn.tolist()))
