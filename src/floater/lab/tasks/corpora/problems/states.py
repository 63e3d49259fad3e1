"""State tracking: a register, counters, and products of permutations."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from floater.lab.tasks.corpora.problems.example import Example, named

READ, WRITE, IGNORE = "r", "w", "i"
INCREMENTS, PASS = "++", "pass"
MOST = 10
"""Greatest value of a counter (Golovneva et al. 2024)."""
_SHARES = (1 / 58, 7 / 58)
_TRIES = 1000


def flip_flop(length: int, ignored: float, random: np.random.Generator) -> Example:
    """Generate instructions to a register of one bit (Liu et al. 2023, "Exposing attention glitches").

    An instruction is two tokens: "w 1" writes a bit, "r 1" reads the bit that was written last, "i 0" is to
    be ignored. The first one writes, the last one reads. The answer has the content of the register at every
    token, and is scored where it is read: at each "r", before its bit.

    Args:
        length: number of instructions, at least 2.
        ignored: share of instructions to ignore; half of the others write.
        random: generator of the example.

    Example:
        >>> example = flip_flop(5, 0.5, np.random.default_rng(0))
        >>> print(*example.question, "|", *example.answer)
        w 0 i 0 r 0 w 1 r 1 | 0 0 0 0 0 0 1 1 1 1
        >>> example.asked
        [4, 8]
    """
    share = (1 - ignored) / 2
    between = random.choice([WRITE, READ, IGNORE], size=length - 2, p=[share, share, ignored]).tolist()
    bits = map(str, random.integers(2, size=length).tolist())
    question, answer, bit = [], [], ""
    for instruction, new in zip([WRITE, *between, READ], bits, strict=True):
        bit = new if instruction == WRITE else bit
        question += [instruction, bit if instruction == READ else new]
        answer += [bit, bit]
    asked = [i for i, token in enumerate(question) if token == READ]
    return Example(question, answer, length, asked)


def counting(length: int, variables: int, random: np.random.Generator) -> Example:
    """Generate a program of counters, and ask for the value of one (Golovneva et al. 2024, CoPE).

    A statement is one token: "x0=0" sets a variable to 0, "x0++" increments it, "pass" does nothing; they are
    drawn 1 : 7 : 50 times. The last token of the question is a variable. Values are up to 10. Unlike there, a
    statement is not split into words.

    Args:
        length: number of statements.
        variables: number of variables; 1, 3 or 5 in the paper.
        random: generator of the example.

    Raises:
        ValueError: if no program in 1,000 sets a variable.

    Example:
        >>> example = counting(6, 2, np.random.default_rng(20))
        >>> print(*example.question, "=", *example.answer)
        x1=0 x1++ pass pass pass x1++ x1 = 2
    """
    names = named("x", variables)
    for _ in range(_TRIES):
        values: dict[str, int] = {}
        question = [_statement(names, values, random) for _ in range(length)]
        if values:
            asked = sorted(values)[int(random.integers(len(values)))]
            return Example([*question, asked], [str(values[asked])], length)
    raise ValueError(f"no program of {length} statements in {_TRIES:,} sets a variable; take greater lengths")


def _statement(names: Sequence[str], values: dict[str, int], random: np.random.Generator) -> str:
    """Return a statement and run it."""
    while True:
        kind = random.random()
        if kind < _SHARES[0]:
            name = names[int(random.integers(len(names)))]
            values[name] = 0
            return f"{name}=0"
        if kind >= sum(_SHARES):
            return PASS
        name = sorted(values)[int(random.integers(len(values)))] if values else ""
        if name and values[name] < MOST:
            values[name] += 1
            return name + INCREMENTS


def statements(variables: int) -> list[str]:
    """Return the words of programs and answers.

    Example:
        >>> statements(1)[:3], len(statements(1))
        (['x0', 'x0=0', 'x0++'], 15)
    """
    words = [word for name in named("x", variables) for word in (name, f"{name}=0", name + INCREMENTS)]
    return [*words, PASS, *map(str, range(MOST + 1))]


def product(length: int, points: int, random: np.random.Generator) -> Example:
    """Generate permutations, and ask for the product of those read so far (Merrill et al. 2024).

    The word problem of the symmetric group, which is hard for constant depth from 5 points on. A permutation
    is a token: the images of 0, 1, ... The answer at token i is g_i o ... o g_1, that is g_1 acts first.

    Args:
        length: number of permutations.
        points: number of points that they move.
        random: generator of the example.

    Example:
        >>> example = product(3, 3, np.random.default_rng(0))
        >>> example.question, example.answer
        (['210', '120', '120'], ['210', '021', '102'])
    """
    group = permutations(points)
    question = [group[i] for i in random.integers(len(group), size=length).tolist()]
    state, answer = group[0], []
    for each in question:
        state = "".join(each[int(point)] for point in state)
        answer.append(state)
    return Example(question, answer, length)


@functools.cache
def permutations(points: int) -> tuple[str, ...]:
    """Return the permutations of up to 10 points in lexicographic order, the identity first.

    Example:
        >>> permutations(3)
        ('012', '021', '102', '120', '201', '210')
    """
    return tuple("".join(map(str, images)) for images in itertools.permutations(range(points)))
