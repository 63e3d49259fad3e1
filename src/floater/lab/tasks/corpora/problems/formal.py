"""Formal languages: after each symbol of a word, which symbols may follow."""

from __future__ import annotations

import numpy as np

from floater.lab.tasks.corpora.problems.example import Example

LETTERS, END = "abcd", "end"


def tomita_4(length: int, random: np.random.Generator) -> Example:
    """Generate a word of bits without "000" (Tomita 1982, grammar 4), and ask for the bits that may follow.

    As in Huang et al. (2025), a bit is drawn again if it would be a third 0 in a row. The answer at each bit
    is "1" after "00" and "01", either, elsewhere.

    Args:
        length: number of bits.
        random: generator of the example.

    Example:
        >>> example = tomita_4(6, np.random.default_rng(2))
        >>> example.question, example.answer
        (['1', '0', '0', '1', '0', '1'], ['01', '01', '1', '01', '01', '01'])
    """
    bits: list[str] = []
    answer = []
    for bit in random.integers(2, size=length).tolist():
        bits.append("1" if bits[-2:] == ["0", "0"] else str(bit))
        answer.append("1" if bits[-2:] == ["0", "0"] else "01")
    return Example(bits, answer, length)


def equal_counts(least: int, most: int, random: np.random.Generator) -> Example:
    """Generate a word a^n b^n c^n d^n, and ask for the symbols that may follow (Bhattamishra et al. 2020).

    After an "a" these are "a" and "b", "ab"; then one symbol, or "end".

    Args:
        least: minimum length of the word.
        most: maximum length of the word, which is a multiple of 4.
        random: generator of the example.

    Raises:
        ValueError: if no word has such a length.

    Example:
        >>> example = equal_counts(8, 8, np.random.default_rng(0))
        >>> print(*example.question, "|", *example.answer)
        a a b b c c d d | ab ab b c c d d end
    """
    low, high = -(-least // 4), most // 4
    if high < max(low, 1):
        raise ValueError(f"no word a^n b^n c^n d^n has {least} to {most} symbols; lengths are multiples of 4")
    n = int(random.integers(max(low, 1), high + 1))
    word = [letter for letter in LETTERS for _ in range(n)]
    return Example(word, ["ab"] * n + word[n + 1 :] + [END], 4 * n)
