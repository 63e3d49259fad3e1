"""ListOps against an evaluation of the text, and against what Long Range Arena says of it."""

import statistics
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floater.lab.tasks.corpora.problems.listops import OPERATIONS, listops, operate


def value(text: str) -> int:
    """The value of an expression: Python evaluates it as calls of functions."""
    names = {"[MIN": "least(", "[MAX": "most(", "[MED": "middle(", "[SM": "total(", "]": "),"}
    functions = {
        "least": lambda *x: min(x),
        "most": lambda *x: max(x),
        "middle": lambda *x: int(statistics.median(x)),
        "total": lambda *x: sum(x) % 10,
    }
    code = " ".join(names.get(token, f"{token},") for token in text.split())
    (actual,) = eval(code if code.endswith(",") else f"{code},", {"__builtins__": {}}, functions)
    assert isinstance(actual, int)
    return actual


def depth(tokens: list[str]) -> int:
    deep = deepest = 1
    for token in tokens:
        deep += token.startswith("[") - (token == "]")
        deepest = max(deepest, deep)
    return deepest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),  # Nangia and Bowman 2018, Figure 1
        ("[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]", 5),  # Tay et al. 2021, section 2.2.1
        ("[MED 1 2 ]", 1),
        ("[SM 9 9 9 ]", 7),
        ("3", 3),
    ],
)
def test_the_oracle_knows_the_expressions_of_the_papers(text: str, expected: int) -> None:
    assert value(text) == expected


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(5, 40))
@settings(max_examples=150)
def test_the_answer_is_the_value_of_the_expression(seed: int, least: int, more: int) -> None:
    drawn = listops(least, least + more, 10, 10, np.random.default_rng(seed))
    assert drawn.answer == [str(value(" ".join(drawn.question)))]
    assert least <= len(drawn.question) == drawn.length <= least + more
    assert drawn.question.count("]") == sum(token.startswith("[") for token in drawn.question)
    assert depth(drawn.question) <= 10


@given(st.lists(st.integers(0, 9), min_size=1, max_size=10))
def test_operations_are_those_of_the_arena(values: list[int]) -> None:
    """The median is NumPy's, cut to a whole number, as in the released generator."""
    expected = [min(values), max(values), int(np.median(values)), sum(values) % 10]
    assert [operate(operation, values) for operation in OPERATIONS] == expected


def test_trees_have_the_proportions_of_the_arena() -> None:
    """Free of a bound on the length: a quarter of the nodes are lists, of 2 to 10 nodes, evenly.

    300 trees; each expected number within five standard deviations of its mean.
    """
    random = np.random.default_rng(3)
    roots = [listops(1, 10**6, 4, 10, random).question for _ in range(4000)]
    lists = sum(len(root) > 1 for root in roots)
    assert abs(lists - 1000) < 5 * (4000 * 0.25 * 0.75) ** 0.5
    flat = [root for root in roots if len(root) > 1 and depth(root) == 2]
    sizes = Counter(len(root) - 2 for root in flat)
    assert set(sizes) == set(range(2, 11))
    # flat lists are digits only: of k digits with weight (3/4)^k
    weights = {k: 0.75**k for k in range(2, 11)}
    for k, weight in weights.items():
        share = weight / sum(weights.values())
        assert abs(sizes[k] - share * len(flat)) < 5 * (len(flat) * share * (1 - share)) ** 0.5
    operations = Counter(root[0] for root in roots if len(root) > 1)
    assert all(abs(operations[name] - lists / 4) < 5 * (lists * 3 / 16) ** 0.5 for name in OPERATIONS)


def test_depth_and_arguments_are_bounds() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        assert depth(listops(4, 60, 3, 4, random).question) <= 3
    with pytest.raises(ValueError, match="no ListOps expression of 2 to 3 tokens"):
        listops(2, 3, 10, 10, random)
    with pytest.raises(ValueError, match="max_depth 2 and max_args 3"):
        listops(8, 9, 2, 3, random)
