"""Chains of variables against a solver that knows nothing of their order."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floater.lab.tasks.corpora.problems.chains import lego
from floater.lab.tasks.corpora.problems.example import Example


def solved(question: list[str]) -> tuple[dict[str, int], dict[str, int], str]:
    """Return the values of all variables, their places in the chain, and the one that is asked for."""
    *clauses, asked = " ".join(question).split(" ; ")
    values: dict[str, int] = {}
    depths: dict[str, int] = {}
    while len(values) < len(clauses):
        for clause in clauses:
            name, _, said = clause.partition(" = ")
            sign, _, other = said.partition(" ")
            if not other:
                values[name], depths[name] = int(said), 0
            elif other in values:
                values[name], depths[name] = int(f"{sign}1") * values[other], depths[other] + 1
    return values, depths, asked


def clauses(drawn: Example) -> list[int]:
    """Return the place in the chain of the variable of each clause."""
    _, depths, _ = solved(drawn.question)
    return [depths[clause.split(" = ")[0]] for clause in " ".join(drawn.question).split(" ; ")[:-1]]


@given(st.integers(2, 30), st.integers(0, 10), st.booleans(), st.integers(0, 2**32 - 1))
def test_the_answer_follows_from_the_clauses(length: int, more: int, permute: bool, seed: int) -> None:
    drawn = lego(length, length + more, permute, np.random.default_rng(seed))
    question, answer, counted, _ = drawn
    values, depths, asked = solved(question)
    assert answer == [f"{values[asked]:+d}"]
    assert len(values) == counted == length
    assert sorted(depths.values()) == list(range(length))
    assert length / 2 <= depths[asked] < length
    assert permute or clauses(drawn) == list(range(length))


@pytest.mark.parametrize("permute", [False, True])
def test_names_values_and_the_asked_variable_come_evenly(permute: bool) -> None:
    random = np.random.default_rng(0)
    drawn = [lego(5, 8, permute, random) for _ in range(4000)]
    order = Counter(depths[asked] for _, depths, asked in (solved(one.question) for one in drawn))
    assert set(order) == {3, 4}
    for count in (*order.values(), sum(one.answer == ["+1"] for one in drawn)):
        assert abs(count - 2000) < 5 * 1000**0.5
    first = Counter(one.question[0] for one in drawn)
    assert len(first) == 8
    assert all(abs(count - 500) < 5 * 438**0.5 for count in first.values())
    in_order = sum(order == sorted(order) for order in map(clauses, drawn))
    assert in_order == 4000 if not permute else abs(in_order - 4000 / 120) < 5 * (4000 / 120) ** 0.5
