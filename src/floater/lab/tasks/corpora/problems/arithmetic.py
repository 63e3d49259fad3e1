"""Addition, sums, polynomials, parity and majority."""

from __future__ import annotations

import numpy as np

from floater.lab.tasks.corpora.problems.example import Example

PLUS, TIMES, POWER = "+", "*", "**"
YES, NO = "yes", "no"
COEFFICIENTS, DEGREES, POINTS = range(-3, 4), range(4), range(-2, 3)
SEQUENCES = 3
"""Number of sequences of `interleaved_majority`."""


def addition(length: int, least_first: bool, random: np.random.Generator) -> Example:
    """Generate an addition of two numbers; neither they nor the sum have leading zeros.

    Args:
        length: number of digits of the longer number; the other has at least one and at most as many digits,
            and either may come first.
        least_first: True to write all three numbers with the least significant digit first, the order in
            which they are added (Lee et al. 2023, "Teaching arithmetic to small Transformers").
        random: generator of the example.

    Example:
        >>> " ".join(addition(2, True, np.random.default_rng(0)).question)
        '5 6 + 3 3'
        >>> addition(2, True, np.random.default_rng(0)).answer  # 65 + 33
        ['8', '9']
    """
    numbers = [_number(digits, random) for digits in (length, int(random.integers(1, length + 1)))]
    if random.integers(2):
        numbers.reverse()
    written = [list(str(number)[:: -1 if least_first else 1]) for number in (*numbers, sum(numbers))]
    return Example([*written[0], PLUS, *written[1]], written[2], length)


def binary_addition(length: int, random: np.random.Generator) -> Example:
    """Generate an addition of two binary numbers, the most significant bit first (Huang et al. 2025).

    Args:
        length: number of tokens of the question and "=", at least 4; the bits are divided at random.
        random: generator of the example.

    Example:
        >>> example = binary_addition(6, np.random.default_rng(0))
        >>> print(*example.question, "=", *example.answer)
        1 1 0 + 0 = 1 1 0
    """
    first = int(random.integers(1, length - 2))
    written = [_bits(count, random) for count in (first, length - 2 - first)]
    total = sum(int("".join(bits), 2) for bits in written)
    return Example([*written[0], PLUS, *written[1]], list(f"{total:b}"), length)


def _bits(count: int, random: np.random.Generator) -> list[str]:
    """Return the bits of a random number without leading zeros; a single bit may be 0."""
    bits = random.integers(2, size=count).tolist()
    return ["1" if count > 1 and not i else str(bit) for i, bit in enumerate(bits)]


def sums(length: int, modulus: int, random: np.random.Generator) -> Example:
    """Generate a sum of digits from 1 to 9, modulo a number (Kazemnejad et al. 2023).

    Args:
        length: number of digits.
        modulus: modulus of the sum; 10 in the paper.
        random: generator of the example.

    Example:
        >>> example = sums(3, 10, np.random.default_rng(0))
        >>> " ".join(example.question), example.answer
        ('8 + 6 + 5', ['9'])
    """
    terms = random.integers(1, 10, size=length).tolist()
    return Example(_joined([[str(term)] for term in terms]), [str(sum(terms) % modulus)], length)


def parity(length: int, uniform_ones: bool, random: np.random.Generator) -> Example:
    """Generate bits, with "yes" as the answer if the number of ones is even (Kazemnejad et al. 2023).

    Args:
        length: number of bits.
        uniform_ones: True for a uniform number of ones, in random order (Huang et al. 2025); False for
            independent bits.
        random: generator of the example.

    Example:
        >>> example = parity(3, False, np.random.default_rng(1))
        >>> example.question, example.answer
        (['0', '1', '1'], ['yes'])
    """
    if uniform_ones:
        bits = _shuffled(int(random.integers(length + 1)), length, random)
    else:
        bits = random.integers(2, size=length).tolist()
    return Example(list(map(str, bits)), [NO if sum(bits) % 2 else YES], length)


def majority(length: int, symbols: int, random: np.random.Generator) -> Example:
    """Generate symbols, and ask for the most frequent one (Huang et al. 2025).

    Args:
        length: number of symbols.
        symbols: number of different symbols.
        random: generator of the example; symbols are drawn again until one is the most frequent.

    Example:
        >>> example = majority(5, 3, np.random.default_rng(0))
        >>> example.question, example.answer
        (['0', '0', '0', '0', '2'], ['0'])
    """
    while True:
        question = random.integers(symbols, size=length)
        counts = np.bincount(question, minlength=symbols)
        if (counts == counts.max()).sum() == 1:
            return Example(list(map(str, question.tolist())), [str(counts.argmax())], length)


def binary_majority(length: int, random: np.random.Generator) -> Example:
    """Generate bits, of which one value is more frequent, and ask for it (Huang et al. 2025).

    Args:
        length: number of bits; the number of ones is uniform among all but half of it.
        random: generator of the example.

    Example:
        >>> example = binary_majority(5, np.random.default_rng(1))
        >>> example.question, example.answer
        (['0', '1', '1', '0', '0'], ['0'])
    """
    bits, answer = _uneven_bits(length, random)
    return Example(bits, [answer], length)


def interleaved_majority(least: int, most: int, random: np.random.Generator) -> Example:
    """Generate three sequences of bits that take turns, and ask for the majority of each (Huang et al. 2025).

    Args:
        least: minimum number of bits.
        most: maximum number of bits. Between both, a number is drawn, and the multiple of three next to it
            is taken.
        random: generator of the example; the numbers of ones are those of `binary_majority`.

    Raises:
        ValueError: if there is no multiple of three between both.

    Example:
        >>> example = interleaved_majority(6, 9, np.random.default_rng(1))
        >>> example.question, example.answer
        (['1', '0', '1', '1', '0', '1'], ['1', '0', '1'])
    """
    low, high = max(1, -(-least // SEQUENCES)), most // SEQUENCES
    if high < low:
        raise ValueError(f"no length from {least} to {most} is a multiple of {SEQUENCES}")
    drawn = int(random.integers(max(SEQUENCES, least), most + 1))
    each = min(max(round(drawn / SEQUENCES), low), high)
    bits, answers = zip(*(_uneven_bits(each, random) for _ in range(SEQUENCES)), strict=True)
    return Example([bit for turn in zip(*bits, strict=True) for bit in turn], [*answers], SEQUENCES * each)


def _uneven_bits(length: int, random: np.random.Generator) -> tuple[list[str], str]:
    """Return bits with a uniform number of ones, but not half of them, and the more frequent value."""
    while 2 * (ones := int(random.integers(length + 1))) == length:
        pass
    return list(map(str, _shuffled(ones, length, random))), str(int(2 * ones > length))


def _shuffled(ones: int, length: int, random: np.random.Generator) -> list[int]:
    """Return bits, of which a number are ones, in random order."""
    bits: list[int] = random.permutation([1] * ones + [0] * (length - ones)).tolist()
    return bits


def poly(length: int, modulus: int, random: np.random.Generator) -> Example:
    """Generate the evaluation of a polynomial at a number, modulo another number (Kazemnejad et al. 2023).

    The question is "x = 2 in 3 * x ** 2 + -1 * x ** 0" with coefficients from -3 to 3, degrees from 0 to 3 in
    any order, and x from -2 to 2. A coefficient is one token; the paper's tokenizer splits off the sign.

    Args:
        length: number of terms.
        modulus: modulus of the value, which is from 0 to modulus - 1; 10 in the paper.
        random: generator of the example.

    Example:
        >>> example = poly(2, 10, np.random.default_rng(0))
        >>> " ".join(example.question), example.answer
        ('x = -1 in 2 * x ** 2 + 1 * x ** 1', ['1'])
    """
    coefficients = random.integers(COEFFICIENTS.start, COEFFICIENTS.stop, size=length).tolist()
    degrees = random.integers(DEGREES.stop, size=length).tolist()
    x = int(random.integers(POINTS.start, POINTS.stop))
    terms = [[str(a), TIMES, "x", POWER, str(n)] for a, n in zip(coefficients, degrees, strict=True)]
    value = sum(a * x**n for a, n in zip(coefficients, degrees, strict=True)) % modulus
    return Example(["x", "=", str(x), "in", *_joined(terms)], [str(value)], length)


def _joined(terms: list[list[str]]) -> list[str]:
    return [token for term in terms for token in (PLUS, *term)][1:]


def _number(digits: int, random: np.random.Generator) -> int:
    """Return a random number with this number of digits; a single digit may be 0."""
    first = random.integers(1 if digits > 1 else 0, 10)
    return int("".join(map(str, [first, *random.integers(10, size=digits - 1)])))
