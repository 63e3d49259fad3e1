"""LEGO: chains of variables, each equal to the variable before or to its negative."""

from __future__ import annotations

import numpy as np

from floater.lab.tasks.corpora.problems.example import EQUALS, Example, named

SIGNS = ("-", "+")
VALUES = ("-1", "+1")
END = ";"


def lego(length: int, names: int, permute: bool, random: np.random.Generator) -> Example:
    """Generate a chain of variables to resolve (Zhang et al. 2022, "Unveiling Transformers with LEGO").

    As in Kazemnejad et al. (2023), the question ends with one variable of the second half of the chain, whose
    value is the answer.

    Args:
        length: number of variables, at least 2.
        names: number of names to choose from, at least `length`.
        permute: True for clauses in random order.
        random: generator of the example.

    Example:
        >>> example = lego(3, 26, False, np.random.default_rng(0))
        >>> print(*example.question, "=", *example.answer)
        x19 = +1 ; x4 = + x19 ; x10 = + x4 ; x10 = +1
    """
    words = named("x", names)
    values = random.integers(2, size=length).tolist()
    chain = [words[i] for i in random.permutation(names)[:length].tolist()]
    clauses = [[chain[0], EQUALS, VALUES[values[0]], END]]
    for i in range(1, length):
        clauses.append([chain[i], EQUALS, SIGNS[values[i] == values[i - 1]], chain[i - 1], END])
    asked = int(random.integers((length + 1) // 2, length))
    if permute:
        clauses = [clauses[i] for i in random.permutation(length).tolist()]
    question = [token for clause in clauses for token in clause]
    return Example([*question, chain[asked]], [VALUES[values[asked]]], length)
