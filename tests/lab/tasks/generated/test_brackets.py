"""Brackets against a reduction of the text, and the words against a list of all of them."""

import itertools
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from floater.lab.tasks.corpora.problems.brackets import BRACKETS, dyck

OPEN, CLOSED = {pair[0] for pair in BRACKETS}, {pair[1] for pair in BRACKETS}
seeds, lengths = st.integers(0, 2**32 - 1), st.integers(1, 60)


def reduced(text: str) -> str:
    """Return what is left of a text without its balanced parts."""
    while text != (shorter := text.replace("()", "").replace("[]", "").replace("{}", "").replace("<>", "")):
        text = shorter
    return text


@given(lengths, seeds)
def test_the_answer_balances_the_question(length: int, seed: int) -> None:
    question, answer, counted, _ = dyck(length, True, np.random.default_rng(seed))
    assert (len(question), counted) == (length, length)
    assert 1 <= len(answer) <= 4
    assert set(answer) <= CLOSED
    assert not reduced("".join(question + answer))


@given(lengths, seeds)
def test_kinds_that_cross_are_balanced_each_on_its_own(length: int, seed: int) -> None:
    question, answer, *_ = dyck(length, False, np.random.default_rng(seed))
    assert 1 <= len(answer) <= 4
    assert set(answer) <= CLOSED
    for pair in BRACKETS:
        assert not reduced("".join(token for token in question + answer if token in pair))
    assert answer == sorted(answer, key="".join(BRACKETS).index), "one order, so that the answer is one"


def test_kinds_cross_where_they_may() -> None:
    random = np.random.default_rng(0)
    words = [dyck(20, False, random) for _ in range(50)]
    crossed = [bool(reduced("".join(word.question)).strip("".join(OPEN))) for word in words]
    assert sum(crossed) > 40


def test_all_prefixes_with_as_many_open_brackets_come_evenly() -> None:
    """Of six steps up and down, those that never go below 0: nine end at 2 and five at 4."""
    random = np.random.default_rng(0)
    actual: Counter[tuple[bool, ...]] = Counter()
    for _ in range(7000):
        actual[tuple(token in OPEN for token in dyck(6, True, random).question)] += 1
    paths = [
        path
        for path in itertools.product((True, False), repeat=6)
        if min(itertools.accumulate(2 * up - 1 for up in path)) >= 0 and sum(path) in (4, 5)
    ]
    assert set(actual) == set(paths)
    for opens in (4, 5):
        counts = [actual[path] for path in paths if sum(path) == opens]
        share = 1 / len(counts)
        assert abs(sum(counts) - 3500) < 5 * (7000 / 4) ** 0.5
        assert all(abs(n - 3500 * share) < 5 * (3500 * share) ** 0.5 for n in counts)
