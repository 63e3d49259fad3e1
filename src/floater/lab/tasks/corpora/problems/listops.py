"""ListOps: nested lists of digits, each with an operation (Nangia and Bowman 2018).

The definition is that of Tay et al. in "Long Range Arena" (2021): MIN, MAX, MED and SM, one bracket per list.
A node of the tree is a list of 2 to `max_args` nodes with probability 1/4; the depth of nodes is at most
`max_depth`.
"""

from __future__ import annotations

import numpy as np

from floater.lab.tasks.corpora.problems.example import DIGITS, Example

OPERATIONS = ("[MIN", "[MAX", "[MED", "[SM")
END = "]"
LIST_RATE = 0.25
TRIES = 20_000


def operate(operation: str, values: list[int]) -> int:
    """Compute the value of one list.

    Args:
        operation: one of `OPERATIONS`: minimum, maximum, median (for an even number of values the mean of the
            middle two, rounded down), sum modulo 10.
        values: values of the elements, 0 to 9.

    Example:
        >>> [operate(operation, [9, 2, 5, 6]) for operation in OPERATIONS]
        [2, 9, 5, 2]
    """
    if operation == "[MIN":
        return min(values)
    if operation == "[MAX":
        return max(values)
    if operation == "[SM":
        return sum(values) % 10
    middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    return sum(middle) // len(middle)


def listops(least: int, most: int, max_depth: int, max_args: int, random: np.random.Generator) -> Example:
    """Generate expressions until one has an allowed length, and return it with its value.

    Args:
        least: minimum number of tokens, including opening brackets with operations and closing brackets.
        most: maximum number of tokens.
        max_depth: maximum depth of digits; 1 allows only a single digit.
        max_args: maximum number of elements of a list.
        random: generator of the example.

    Raises:
        ValueError: if 20,000 tries give no expression of such a length.

    Example:
        >>> example = listops(6, 8, 10, 10, np.random.default_rng(0))
        >>> " ".join(example.question), example.answer, example.length
        ('[MAX 8 5 9 6 ]', ['9'], 6)
    """
    for _ in range(TRIES):
        tokens: list[str] = []
        value = _node(tokens, 1, most, max_depth, max_args, random)
        if value is not None and least <= len(tokens) <= most:
            return Example(tokens, [str(value)], len(tokens))
    raise ValueError(
        f"no ListOps expression of {least} to {most} tokens in {TRIES:,} tries; "
        f"max_depth {max_depth} and max_args {max_args} make them rare"
    )


def _node(
    tokens: list[str], depth: int, most: int, max_depth: int, max_args: int, random: np.random.Generator
) -> int | None:
    """Append the tokens of a node and return its value, or None if there are too many tokens."""
    if depth >= max_depth or random.random() > LIST_RATE:
        digit = int(random.integers(10))
        tokens.append(DIGITS[digit])
        return digit
    operation = OPERATIONS[int(random.integers(len(OPERATIONS)))]
    tokens.append(operation)
    values = []
    for _ in range(int(random.integers(2, max_args + 1))):
        value = _node(tokens, depth + 1, most, max_depth, max_args, random)
        if value is None or len(tokens) >= most:
            return None
        values.append(value)
    tokens.append(END)
    return operate(operation, values)
