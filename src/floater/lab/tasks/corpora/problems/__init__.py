"""Problems of the generated task, with their generators of examples, vocabularies and lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from floater.lab.tasks.corpora.problems import (
    arithmetic,
    brackets,
    chains,
    copying,
    formal,
    listops,
    positioned,
    retrieval,
    states,
)
from floater.lab.tasks.corpora.problems.example import (
    DIGITS,
    EQUALS,
    AnyExample,
    Example,
    PositionedExample,
    named,
)
from floater.lab.tasks.corpora.problems.options import Options

__all__ = ["DIGITS", "EQUALS", "PROBLEMS", "AnyExample", "Example", "PositionedExample", "Problem"]

Generator = np.random.Generator


@dataclass(frozen=True)
class Problem:
    """A problem, as a function of the settings of its data.

    Args:
        generate: function that generates an example whose length is between two bounds.
        words: function that returns the tokens of questions and answers.
        unit: unit of a length.
        tokens: function that returns the maximum number of tokens of a row of a length: <s>, question, =,
            answer, </s>.
        options: settings besides the lengths, numbers and seeds of examples that it reads.
        refuse: function that returns a message about invalid settings, or None if they are valid.
        classes: number of classes if the answer is the number of a class; 0 if it consists of tokens.
        aligned: True if the answer has a token for each of the question, which the model predicts there.
        disjoint: False if questions are so few that the splits share them.
    """

    generate: Callable[[Options, tuple[int, int], Generator], AnyExample]
    words: Callable[[Options], list[str]]
    unit: str
    tokens: Callable[[Options, int], int]
    options: tuple[str, ...] = ("symbols",)
    refuse: Callable[[Options], str | None] = lambda data: None
    classes: int = 0
    aligned: bool = False
    disjoint: bool = True


def _even(
    generate: Callable[[Options, int, Generator], AnyExample],
) -> Callable[[Options, tuple[int, int], Generator], AnyExample]:
    """Return a generator that samples lengths uniformly between the bounds."""
    return lambda data, lengths, random: generate(
        data, int(random.integers(lengths[0], lengths[1] + 1)), random
    )


def _ordered(
    generate: Callable[[Options, int, Generator], AnyExample],
    options: tuple[str, ...] = ("symbols",),
    refuse: Callable[[Options], str | None] = lambda data: None,
) -> Problem:
    """Return a problem whose answer is the symbols of the question in some order."""
    return Problem(
        _even(generate),
        lambda data: [EQUALS, *map(str, range(data.symbols))],
        unit="symbols",
        tokens=lambda data, n: 2 * n + 3,
        options=options,
        refuse=refuse,
    )


def _copied(generate: Callable[[int, int, bool, Generator], Example]) -> Problem:
    """Return a problem of `copying`."""
    return _ordered(
        lambda data, n, random: generate(n, data.symbols, data.distinct, random),
        ("symbols", "distinct"),
        refuse=lambda data: _few_names(data) if data.distinct else None,
    )


def _products(points: int) -> Problem:
    """Return the word problem of a symmetric group."""
    return Problem(
        _even(lambda data, n, random: states.product(n, points, random)),
        lambda data: [*states.permutations(points)],
        unit="permutations",
        tokens=lambda data, n: n + 2,  # <s>, the question, </s>
        options=(),
        aligned=True,
    )


def _residues(data: Options) -> list[str]:
    """Return the words for the digits and for the numbers below the modulus."""
    return list(map(str, range(max(10, data.modulus))))


def _poly_words(data: Options) -> list[str]:
    signed = map(str, (*arithmetic.COEFFICIENTS, *arithmetic.POINTS, *arithmetic.DEGREES))
    signs = [arithmetic.PLUS, arithmetic.TIMES, arithmetic.POWER]
    return list(dict.fromkeys([EQUALS, "x", "in", *signs, *signed, *_residues(data)]))


def _few_names(data: Options) -> str | None:
    if data.symbols < data.most:
        return f"symbols is {data.symbols}; the longest test needs {data.most} different names"
    return None


def _short_chain(data: Options) -> str | None:
    if data.lengths[0] < 2:
        return f"lengths begin at {data.lengths[0]}; a chain has at least 2 variables"
    return _few_names(data)


def _no_room(data: Options) -> str | None:
    if data.lengths[0] <= data.digits:
        return f"lengths begin at {data.lengths[0]}; the key alone has {data.digits + 1} tokens"
    return None


def _no_list(data: Options) -> str | None:
    if data.lengths[1] < 4:
        return f"lengths end at {data.lengths[1]}; the shortest list of ListOps has 4 tokens"
    return None


def _few_nodes(data: Options) -> str | None:
    if data.lengths[0] <= positioned.FAR:
        far = positioned.FAR
        return f"lengths begin at {data.lengths[0]}; nodes {far} edges apart need {far + 1}"
    return None


def _begin_at(least: int, why: str) -> Callable[[Options], str | None]:
    """Return a refusal of lengths that begin below the least one."""
    return lambda data: f"lengths begin at {data.lengths[0]}; {why}" if data.lengths[0] < least else None


def _graph(
    generate: Callable[[Options, int, Generator], AnyExample], options: tuple[str, ...] = ("symbols",)
) -> Problem:
    """Return a problem about the distance of two nodes."""
    return Problem(
        _even(generate),
        lambda data: positioned.nodes(data.symbols),
        unit="nodes",
        tokens=lambda data, n: n + 1,  # <s> and the question
        options=options,
        refuse=_few_nodes,
        classes=positioned.FAR,
    )


PROBLEMS = {
    "copy": _copied(copying.copy),
    "reverse": _copied(copying.reverse),
    "sort": _copied(copying.sort),
    "missing_duplicate": Problem(
        _even(lambda data, n, random: copying.missing_duplicate(n, random)),
        lambda data: ["0", "1", copying.MISSING, copying.FILLER],
        unit="tokens of the question",
        tokens=lambda data, n: n + 1,  # <s> and the question
        options=(),
        refuse=_begin_at(2, "a bit written twice has 2"),
        classes=2,
    ),
    "addition": Problem(
        _even(lambda data, n, random: arithmetic.addition(n, data.least_first, random)),
        lambda data: [EQUALS, arithmetic.PLUS, *DIGITS],
        unit="digits of the longer number",
        tokens=lambda data, n: 3 * n + 5,
        options=("least_first",),
    ),
    "binary_addition": Problem(
        _even(lambda data, n, random: arithmetic.binary_addition(n, random)),
        lambda data: [EQUALS, arithmetic.PLUS, *DIGITS[:2]],
        unit="tokens of the question and =",
        tokens=lambda data, n: 2 * n,  # at most n - 2 bits of the sum
        options=(),
        refuse=_begin_at(4, "the shortest addition, 0 + 0 =, has 4 tokens"),
    ),
    "sum": Problem(
        _even(lambda data, n, random: arithmetic.sums(n, data.modulus, random)),
        lambda data: [EQUALS, arithmetic.PLUS, *_residues(data)],
        unit="terms",
        tokens=lambda data, n: 2 * n + 3,
        options=("modulus",),
    ),
    "parity": Problem(
        _even(lambda data, n, random: arithmetic.parity(n, data.uniform_ones, random)),
        lambda data: [EQUALS, "0", "1", arithmetic.YES, arithmetic.NO],
        unit="bits",
        tokens=lambda data, n: n + 4,
        options=("uniform_ones",),
    ),
    "majority": Problem(
        _even(lambda data, n, random: arithmetic.majority(n, data.symbols, random)),
        lambda data: [EQUALS, *map(str, range(data.symbols))],
        unit="symbols",
        tokens=lambda data, n: n + 4,
    ),
    "binary_majority": Problem(
        _even(lambda data, n, random: arithmetic.binary_majority(n, random)),
        lambda data: [EQUALS, *DIGITS[:2]],
        unit="bits",
        tokens=lambda data, n: n + 4,
        options=(),
    ),
    "interleaved_majority": Problem(
        lambda data, lengths, random: arithmetic.interleaved_majority(*lengths, random),
        lambda data: [EQUALS, *DIGITS[:2]],
        unit="bits",
        tokens=lambda data, n: n + arithmetic.SEQUENCES + 3,
        options=(),
    ),
    "poly": Problem(
        _even(lambda data, n, random: arithmetic.poly(n, data.modulus, random)),
        _poly_words,
        unit="terms",
        tokens=lambda data, n: 6 * n + 7,
        options=("modulus",),
    ),
    "dyck": Problem(
        _even(lambda data, n, random: brackets.dyck(n, data.nested, random)),
        lambda data: [EQUALS, *"".join(brackets.BRACKETS)],
        unit="brackets of the question",
        tokens=lambda data, n: n + brackets.most_unclosed(n) + 3,
        options=("nested",),
    ),
    "tomita_4": Problem(
        _even(lambda data, n, random: formal.tomita_4(n, random)),
        lambda data: ["0", "1", "01"],
        unit="bits",
        tokens=lambda data, n: n + 2,
        options=(),
        aligned=True,
    ),
    "equal_counts": Problem(
        lambda data, lengths, random: formal.equal_counts(*lengths, random),
        lambda data: [*formal.LETTERS, "ab", formal.END],
        unit="symbols",
        tokens=lambda data, n: n + 2,
        options=(),
        aligned=True,
        disjoint=False,
    ),
    "flip_flop": Problem(
        _even(lambda data, n, random: states.flip_flop(n, data.ignored, random)),
        lambda data: ["0", "1", states.WRITE, states.READ, states.IGNORE],
        unit="instructions",
        tokens=lambda data, n: 2 * n + 2,
        options=("ignored",),
        refuse=_begin_at(2, "the register is written and read, which takes 2"),
        aligned=True,
    ),
    "counting": Problem(
        _even(lambda data, n, random: states.counting(n, data.symbols, random)),
        lambda data: [EQUALS, *states.statements(data.symbols)],
        unit="statements",
        tokens=lambda data, n: n + 5,
    ),
    "s3": _products(3),
    "s5": _products(5),
    "lego": Problem(
        _even(lambda data, n, random: chains.lego(n, data.symbols, data.permute, random)),
        lambda data: [EQUALS, chains.END, *chains.SIGNS, *chains.VALUES, *named("x", data.symbols)],
        unit="variables",
        tokens=lambda data, n: 5 * n + 4,
        options=("symbols", "permute"),
        refuse=_short_chain,
    ),
    "recall": Problem(
        _even(lambda data, n, random: retrieval.recall(n, data.symbols, data.slots, random)),
        lambda data: [EQUALS, *retrieval.associations(data.symbols)],
        unit="keys",
        tokens=lambda data, n: 2 * (1 + data.slots) * n + 3,
        options=("symbols", "slots"),
        refuse=_few_names,
    ),
    "passkey": Problem(
        _even(lambda data, n, random: retrieval.passkey(n, data.symbols, data.digits, random)),
        lambda data: [EQUALS, retrieval.KEY, *DIGITS, *named("w", data.symbols)],
        unit="tokens of the question",
        tokens=lambda data, n: n + data.digits + 3,
        options=("symbols", "digits"),
        refuse=_no_room,
    ),
    "listops": Problem(
        lambda data, lengths, random: listops.listops(*lengths, data.max_depth, data.max_args, random),
        lambda data: [*listops.OPERATIONS, listops.END, *DIGITS],
        unit="tokens of the expression",
        tokens=lambda data, n: n + 1,  # <s> and the question
        options=("max_depth", "max_args"),
        refuse=_no_list,
        classes=10,
    ),
    "tree_distance": _graph(lambda data, n, random: positioned.tree_distance(n, data.symbols, random)),
    "graph_distance": _graph(
        lambda data, n, random: positioned.graph_distance(n, data.symbols, data.extra_edges, random),
        ("symbols", "extra_edges"),
    ),
    "languages": _ordered(lambda data, n, random: positioned.languages(n, data.symbols, random)),
    "reorder": _ordered(lambda data, n, random: positioned.reorder(n, data.symbols, random)),
    "repeat": Problem(
        _even(lambda data, n, random: positioned.repeat(n, data.symbols, random)),
        lambda data: [EQUALS, *map(str, range(data.symbols))],
        unit="symbols of the answer",
        tokens=lambda data, n: n + positioned.PERIOD + 3,
    ),
}
