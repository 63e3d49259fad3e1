"""Addition, sums, polynomials and parity."""

from __future__ import annotations

import numpy as np

from floater.lab.tasks.corpora.problems.example import Example

PLUS, TIMES, POWER = "+", "*", "**"
YES, NO = "yes", "no"
COEFFICIENTS, DEGREES, POINTS = range(-3, 4), range(4), range(-2, 3)


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


def parity(length: int, random: np.random.Generator) -> Example:
    """Generate bits, with "yes" as the answer if the number of ones is even (Kazemnejad et al. 2023).

    Args:
        length: number of bits.
        random: generator of the example.

    Example:
        >>> example = parity(3, np.random.default_rng(1))
        >>> example.question, example.answer
        (['0', '1', '1'], ['yes'])
    """
    bits = random.integers(2, size=length).tolist()
    return Example(list(map(str, bits)), [NO if sum(bits) % 2 else YES], length)


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
