"""Tree encodings against paths written out step by step."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from structural_cases import SIZES

from floater import Positions, build

SIZES = SIZES | {"dim": 26}


def branches(parents, node):
    """Return the index of a node among its siblings, then of its parent, and so on up to the root."""
    out = []
    while parents[node] >= 0:
        out.append([other for other, p in enumerate(parents) if p == parents[node]].index(node))
        node = parents[node]
    return out


def binary_branches(parents, node):
    """In the left-child right-sibling form: 1 for each sibling before, then 0 for the way up."""
    return [step for b in branches(parents, node) for step in [1] * b + [0]]


def encoded(steps, branching, depth, weights, dim=26):
    """The one-hot path, or one weighted copy of it for each parameter side by side."""
    steps = steps[:depth]
    out = []
    for w in [None] if weights is None else weights:
        p = 1.0 if w is None else math.tanh(w)
        norm = 1.0 if w is None else math.sqrt((1 - p * p) * dim / 2)
        copy = [0.0] * (branching * depth)
        for i, branch in enumerate(steps):
            copy[i * branching + branch] = norm * p**i
        out += copy
    return out + [0.0] * (dim - len(out))


@st.composite
def small_trees(draw):
    size = draw(st.integers(1, 8))
    children = [0] * size
    parents = [-1]
    for i in range(1, size):
        parent = draw(st.sampled_from([p for p in range(i) if children[p] < 3]))
        children[parent] += 1
        parents.append(parent)
    return parents


@settings(max_examples=30)
@given(st.lists(small_trees(), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_the_way_to_the_root_is_encoded(batch, weighted, binary):
    torch.manual_seed(0)
    options = {"branching": 2, "depth": 5} if binary else {"branching": 3, "depth": 4}
    model = build("tree", **SIZES, **options, weighted=weighted, binary=binary).double()
    count = sum(p.numel() for p in model.parameters())
    assert count == (26 // (options["branching"] * options["depth"]) if weighted else 0)
    weights = model.weight.tolist() if weighted else None
    actual = model.embed(torch.zeros(1, 1, 26).double(), model.prepare(Positions.tree(batch)))
    for sample, parents in enumerate(batch):
        for node in range(len(parents)):
            steps = (binary_branches if binary else branches)(parents, node)
            wanted = torch.tensor(encoded(steps, **options, weights=weights), dtype=torch.float64)
            torch.testing.assert_close(actual[sample, node], wanted)


def test_every_node_of_a_full_tree_has_a_vector_of_its_own():
    parents = [-1] + [i // 3 for i in range(39)]  # three levels below the root, three children each
    model = build("tree", **SIZES, branching=3, depth=3)
    assert len(model.prepare(Positions.tree([parents]))[0].unique(dim=0)) == 40


@pytest.mark.parametrize("depth", [2, 3])
def test_a_push_drops_the_farthest_ancestor(depth):
    model = build("tree", **SIZES, branching=2, depth=depth, weighted=False)
    parents = [-1, 0, 0, 2, 3, 4]  # second child, then a chain of first children
    chain = model.prepare(Positions.tree([parents]))[0]
    assert chain[5, : 2 * depth].tolist() == encoded([0] * depth, 2, depth, None)[: 2 * depth]
