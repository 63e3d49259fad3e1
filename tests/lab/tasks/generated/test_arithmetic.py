"""Addition, sums, polynomials, parity and majority against column addition and Python's own arithmetic."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floater.lab.tasks.corpora.problems.arithmetic import (
    addition,
    binary_addition,
    binary_majority,
    interleaved_majority,
    majority,
    parity,
    poly,
    sums,
)

seeds, lengths = st.integers(0, 2**32 - 1), st.integers(1, 40)


@given(lengths, st.booleans(), seeds)
def test_the_sum_is_that_of_column_addition(length: int, least_first: bool, seed: int) -> None:
    question, answer, *_ = addition(length, least_first, np.random.default_rng(seed))
    plus = question.index("+")
    numbers = [question[:plus], question[plus + 1 :]]
    for written in (*numbers, answer):
        assert len(written) == 1 or written[-1 if least_first else 0] != "0"
    assert max(map(len, numbers)) == length
    # as on paper: digit by digit from the least, with a carry
    columns = [[int(digit) for digit in (n if least_first else n[::-1])] for n in numbers]
    carry, expected = 0, []
    for i in range(length):
        carry, digit = divmod(carry + sum(column[i] for column in columns if i < len(column)), 10)
        expected.append(digit)
    if carry:
        expected.append(carry)
    assert [int(digit) for digit in (answer if least_first else answer[::-1])] == expected


def test_the_shorter_number_may_come_first() -> None:
    random = np.random.default_rng(0)
    first = sum("+" in addition(3, True, random).question[:2] for _ in range(2000))
    # a number of one digit comes first in a sixth of all: 333, standard deviation 17
    assert abs(first - 333) < 5 * 17


@given(lengths, st.integers(2, 30), seeds)
def test_sums_and_polynomials_are_what_python_evaluates(length: int, modulus: int, seed: int) -> None:
    question, answer, counted, _ = sums(length, modulus, np.random.default_rng(seed))
    assert answer == [str(eval(" ".join(question)) % modulus)]
    assert question.count("+") + 1 == counted == length
    question, answer, counted, _ = poly(length, modulus, np.random.default_rng(seed))
    head, text = " ".join(question).split(" in ")
    name, degree = head.split(" = ")
    assert answer == [str(eval(text, {name: int(degree)}) % modulus)]
    assert text.count("x") == counted == length


@given(st.integers(4, 40), seeds)
def test_binary_sums_are_what_python_evaluates(length: int, seed: int) -> None:
    question, answer, counted, _ = binary_addition(length, np.random.default_rng(seed))
    first, second = "".join(question).split("+")
    assert "".join(answer) == f"{int(first, 2) + int(second, 2):b}"
    assert all(number == f"{int(number, 2):b}" for number in (first, second)), "no leading zeros"
    assert len([*question, "="]) == counted == length


@given(lengths, st.integers(2, 26), seeds)
def test_the_majority_is_the_mode_and_the_only_one(length: int, symbols: int, seed: int) -> None:
    question, answer, counted, _ = majority(length, symbols, np.random.default_rng(seed))
    (most, count), *others = Counter(question).most_common()
    assert answer == [most]
    assert all(other < count for _, other in others)
    assert len(question) == counted == length
    assert set(map(int, question)) <= set(range(symbols))


@given(lengths, st.integers(0, 40), seeds)
def test_the_majority_of_bits_has_more_than_half(least: int, more: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    question, answer, counted, _ = binary_majority(least, random)
    assert 2 * question.count(answer[0]) > len(question) == counted == least
    assert {*question} <= {"0", "1"}
    if not any(n % 3 == 0 for n in range(least, least + more + 1)):
        with pytest.raises(ValueError, match=f"no length from {least} to {least + more} is a multiple of 3"):
            interleaved_majority(least, least + more, random)
        return
    question, answer, counted, _ = interleaved_majority(least, least + more, random)
    assert least <= len(question) == counted <= least + more
    for first, most in enumerate(answer):  # every third bit from the first, from the second, from the third
        assert 2 * question[first::3].count(most) > len(question) / 3
    assert len(answer) == 3


def test_the_number_of_ones_is_uniform_without_half_of_them() -> None:
    """Four bits have 0, 1, 3 or 4 ones with equal probability, within five standard deviations."""
    random = np.random.default_rng(0)
    drawn = [binary_majority(4, random).question for _ in range(4000)]
    drawn += [interleaved_majority(12, 12, random).question[2::3] for _ in range(4000)]
    for half in (drawn[:4000], drawn[4000:]):
        ones = Counter(bits.count("1") for bits in half)
        assert ones.keys() == {0, 1, 3, 4}
        assert all(abs(count - 1000) < 5 * 750**0.5 for count in ones.values())
        first = sum(bits[0] == "1" for bits in half)
        assert abs(first - 2000) < 5 * 1000**0.5, "ones are in random order"


def test_lengths_of_interleaved_bits_are_next_to_those_drawn() -> None:
    """Numbers from 51 to 100 are rounded to multiples of 3: two of them to 51, three to each other one."""
    random = np.random.default_rng(0)
    drawn = Counter(interleaved_majority(51, 100, random).length for _ in range(5000))
    assert drawn.keys() == {*range(51, 100, 3)}
    for length, count in drawn.items():
        share = (2 if length == 51 else 3) / 50
        assert abs(count - 5000 * share) < 5 * (5000 * share * (1 - share)) ** 0.5


def test_the_number_of_ones_is_uniform_where_asked() -> None:
    """Of 0 to 4 ones a fifth each, independent bits 1 : 4 : 6 : 4 : 1; within five standard deviations."""
    random = np.random.default_rng(0)
    for uniform, shares in ((True, [0.2] * 5), (False, [1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16])):
        ones = Counter(parity(4, uniform, random).question.count("1") for _ in range(4000))
        for count, share in enumerate(shares):
            assert abs(ones[count] - 4000 * share) < 5 * (4000 * share * (1 - share)) ** 0.5
    first = sum(parity(4, True, random).question[0] == "1" for _ in range(4000))
    assert abs(first - 2000) < 5 * 1000**0.5, "ones are in random order"


@given(lengths, st.booleans(), seeds)
def test_parity_is_that_of_the_ones(length: int, uniform: bool, seed: int) -> None:
    question, answer, counted, _ = parity(length, uniform, np.random.default_rng(seed))
    even = True
    for bit in question:
        even ^= bit == "1"
    assert (answer, len(question), counted) == (["yes" if even else "no"], length, length)


@pytest.mark.parametrize(
    ("degree", "values"),
    [(0, range(-2, 3)), (1, range(-3, 4)), (2, range(4))],
    ids=["x", "coefficients", "degrees"],
)
def test_polynomials_have_the_ranges_of_the_paper(degree: int, values: range) -> None:
    """Each value within five standard deviations of its share."""
    random = np.random.default_rng(0)
    actual = Counter(poly(1, 10, random).question[(2, 4, 8)[degree]] for _ in range(4000))
    assert set(actual) == set(map(str, values))
    share = 1 / len(values)
    assert all(abs(n - 4000 * share) < 5 * (4000 * share * (1 - share)) ** 0.5 for n in actual.values())
