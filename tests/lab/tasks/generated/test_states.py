"""State tracking and formal languages against machines that run the text, and words that are listed."""

import re
from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floater.lab.tasks.corpora.problems.formal import equal_counts, tomita_4
from floater.lab.tasks.corpora.problems.states import counting, flip_flop, permutations, product

seeds, lengths = st.integers(0, 2**32 - 1), st.integers(2, 60)


@given(lengths, st.floats(0, 0.99), seeds)
def test_a_read_bit_is_the_last_written_one(length: int, ignored: float, seed: int) -> None:
    question, answer, counted, asked = flip_flop(length, ignored, np.random.default_rng(seed))
    text = "".join(question)
    assert re.fullmatch(r"w[01]([wri][01])*r[01]", text)
    assert len(text) == 2 * counted == 2 * length
    reads = [match.start() for match in re.finditer("r", text)]
    assert asked == reads
    for read in reads:
        (written,) = re.findall(r"w([01])", text[:read])[-1:]
        assert text[read + 1] == answer[read] == written


def test_instructions_are_ignored_as_often_as_asked() -> None:
    """Of 20,000 instructions 80 % are ignored and 10 % write; within five standard deviations."""
    random = np.random.default_rng(0)
    kinds = Counter(flip_flop(20_002, 0.8, random).question[2:-2:2])
    for kind, share in (("i", 0.8), ("w", 0.1), ("r", 0.1)):
        assert abs(kinds[kind] - 20_000 * share) < 5 * (20_000 * share * (1 - share)) ** 0.5


@given(st.integers(40, 200), st.integers(1, 5), seeds)
def test_counters_are_what_python_counts(length: int, variables: int, seed: int) -> None:
    question, answer, counted, _ = counting(length, variables, np.random.default_rng(seed))
    *program, asked = question
    state: dict[str, int] = {}
    exec("\n".join(statement.replace("++", "+=1") for statement in program), {}, state)
    assert answer == [str(state[asked])]
    assert all(value <= 10 for value in state.values())
    assert len(program) == counted == length


def test_statements_have_the_shares_of_the_paper() -> None:
    """1 : 7 : 50 after the first variable, far from the bound of values; within five standard deviations."""
    random, drawn = np.random.default_rng(0), Counter[str]()
    for _ in range(200):
        program = counting(200, 3, random).question[:-1]
        first = next(i for i, statement in enumerate(program) if "=" in statement)
        drawn.update(statement[2:] for statement in program[first + 1 : first + 21])
    total = drawn.total()
    for kind, share in (("=0", 1 / 58), ("++", 7 / 58), ("ss", 50 / 58)):
        assert abs(drawn[kind] - total * share) < 5 * (total * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("points", [3, 5])
def test_a_product_is_that_of_permutation_matrices(points: int) -> None:
    group = permutations(points)
    assert len({*group}) == {3: 6, 5: 120}[points]
    question, answer, *_ = product(40, points, np.random.default_rng(0))
    matrices = [np.eye(points, dtype=int)[:, [*map(int, each)]] for each in question]
    for state, each in zip(accumulate(matrices, lambda before, next: next @ before), answer, strict=True):
        assert "".join(map(str, state.argmax(0))) == each
    assert {*answer} <= {*group}


@given(lengths, seeds)
def test_words_of_tomita_4_go_on_without_a_third_zero(length: int, seed: int) -> None:
    question, answer, counted, _ = tomita_4(length, np.random.default_rng(seed))
    word = "".join(question)
    assert len(word) == counted == length
    assert "000" not in word
    for i, allowed in enumerate(answer):
        assert allowed == "".join(bit for bit in "01" if "000" not in word[: i + 1] + bit)


@given(st.integers(1, 60), st.integers(0, 60), seeds)
def test_words_of_equal_counts_go_on_as_the_language_allows(least: int, more: int, seed: int) -> None:
    words = [f"{'a' * n}{'b' * n}{'c' * n}{'d' * n}" for n in range(1, 32)]
    fit = [word for word in words if least <= len(word) <= least + more]
    if not fit:
        with pytest.raises(ValueError, match="lengths are multiples of 4"):
            equal_counts(least, least + more, np.random.default_rng(seed))
        return
    question, answer, counted, _ = equal_counts(least, least + more, np.random.default_rng(seed))
    word = "".join(question)
    assert word in fit
    assert counted == len(word)
    longer = [f"{'a' * n}{'b' * n}{'c' * n}{'d' * n}" for n in range(1, len(word) + 2)]
    for i, allowed in enumerate(answer):
        after = {w[i + 1 : i + 2] or "end" for w in longer if w.startswith(word[: i + 1])}
        assert allowed == "".join(sorted(after))
