"""Copy, reverse and sort: answers by their properties, not by the code that generates them."""

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from floater.lab.tasks.corpora.problems.copying import copy, missing_duplicate, reverse, sort

seeds, lengths = st.integers(0, 2**32 - 1), st.integers(1, 40)


@given(lengths, st.integers(2, 50), seeds)
def test_copy_reverse_and_sort_say_the_symbols_of_the_question(length: int, symbols: int, seed: int) -> None:
    drawn = [
        problem(length, symbols, False, np.random.default_rng(seed)) for problem in (copy, reverse, sort)
    ]
    question = drawn[0].question
    assert len(question) == length
    assert set(map(int, question)) <= set(range(symbols))
    assert all(one.question == question and one.length == length for one in drawn)
    said, back, sorted_ = (one.answer for one in drawn)
    assert said == question
    assert [back[length - 1 - i] for i in range(length)] == question
    assert Counter(sorted_) == Counter(question)
    assert all(int(a) <= int(b) for a, b in pairwise(sorted_))


def test_symbols_come_evenly() -> None:
    """Chi-squared of 32,000 draws over 32 symbols: beyond 80 with probability 3e-6."""
    random = np.random.default_rng(0)
    counts = Counter(symbol for _ in range(1000) for symbol in copy(32, 32, False, random).question)
    assert sum((counts[str(symbol)] - 1000) ** 2 / 1000 for symbol in range(32)) < 80


@given(lengths, st.integers(0, 20), seeds)
def test_distinct_symbols_differ(length: int, more: int, seed: int) -> None:
    question = sort(length, length + more, True, np.random.default_rng(seed)).question
    assert len(set(question)) == length
    assert set(map(int, question)) <= set(range(length + more))


@given(st.integers(2, 60), seeds)
def test_the_missing_bit_is_in_the_other_copy(length: int, seed: int) -> None:
    question, (bit,), counted, _ = missing_duplicate(length, np.random.default_rng(seed))
    assert len(question) == counted == length
    assert question[2 * (length // 2) :] == ["_"] * (length % 2)
    halves = question[: length // 2], question[length // 2 : 2 * (length // 2)]
    assert sorted(pair for pair in zip(*halves, strict=True) if pair[0] != pair[1]) == [("?", bit)] or [
        pair for pair in zip(*halves, strict=True) if pair[0] != pair[1]
    ] == [(bit, "?")]


def test_a_missing_bit_is_hidden_anywhere_alike() -> None:
    random = np.random.default_rng(0)
    examples = [missing_duplicate(9, random) for _ in range(4000)]
    counts = Counter((example.question.index("?"), *example.answer) for example in examples)
    assert len(counts) == 16
    assert max(counts.values()) < 4000 / 16 * 1.3
    assert min(counts.values()) > 4000 / 16 * 0.7
