"""Associative recall against a dictionary, and the passkey against the text without it."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floater.lab.tasks.corpora.problems.retrieval import passkey, recall

seeds = st.integers(0, 2**32 - 1)


@given(st.integers(1, 30), st.integers(0, 10), st.integers(1, 7), seeds)
def test_each_key_is_asked_once_for_its_own_value(length: int, more: int, slots: int, seed: int) -> None:
    names = length + more
    question, answer, counted, asked = recall(length, names, slots, np.random.default_rng(seed))
    values = dict(zip(question[::2], question[1::2], strict=True))
    assert asked is not None
    assert len(values) == len(set(values.values())) == len(asked) == counted == length
    assert {answer[i - 1]: answer[i] for i in asked} == values
    assert len(answer) == 2 * length * slots
    words = {f"{letter}{i}" for letter in "kv" for i in range(names)}
    assert {*question, *answer} <= words
    assert all(token[0] == "kv"[i % 2] for i, token in enumerate(question))


def test_queries_come_by_the_power_law_of_zoology() -> None:
    """Of one key and seven places: probabilities i^(a - 1) with a = 0.01; each within five deviations."""
    random = np.random.default_rng(0)
    actual = Counter((recall(1, 5, 7, random).asked or [])[0] // 2 for _ in range(4000))
    weights = [0.01 * i ** (0.01 - 1) for i in range(1, 8)]
    for slot, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(actual[slot] - 4000 * share) < 5 * (4000 * share * (1 - share)) ** 0.5


@given(st.integers(1, 8), st.integers(0, 50), st.integers(2, 9), seeds)
def test_the_number_is_the_only_thing_in_the_filler(digits: int, rest: int, words: int, seed: int) -> None:
    question, answer, length, _ = passkey(rest + digits + 1, words, digits, np.random.default_rng(seed))
    assert len(question) == length
    slot = question.index("key")
    assert question[slot + 1 : slot + 1 + digits] == answer
    assert all(token.isdigit() for token in answer)
    for part in (question[:slot], question[slot + 1 + digits :]):
        assert part == [f"w{i % words}" for i in range(len(part))]


@pytest.mark.parametrize("digit", [0, 4])
def test_depths_and_digits_come_evenly(digit: int) -> None:
    random = np.random.default_rng(digit)
    drawn = [passkey(15, 20, 5, random) for _ in range(5000)]
    for actual in (Counter(d.question.index("key") for d in drawn), Counter(d.answer[digit] for d in drawn)):
        assert len(actual) == 10
        assert all(abs(count - 500) < 5 * 450**0.5 for count in actual.values())
