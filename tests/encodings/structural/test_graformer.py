"""Graformer against shortest paths of networkx."""

import math

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from structural_cases import SIZES, qk

from floater import Positions, build
from floater.encodings import AttentionContext


def relation(lengths, t, s):
    """Equation 31 of the survey; None for no path."""
    there, back = lengths[t].get(s, math.inf), lengths[s].get(t, math.inf)
    if there == back == math.inf:
        return None
    return there if there <= back else -back


def number(r, reach):
    if r is None:
        return 1
    return 2 * min(r, reach) if r >= 0 else 2 * min(-r, reach) + 1


@settings(max_examples=30)
@given(
    st.integers(1, 7).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.tuples(*[st.integers(0, n - 1)] * 2)))
    )
)
def test_logits_get_the_scalar_of_the_signed_distance(case):
    size, edges = case
    torch.manual_seed(0)
    model = build("graformer", **SIZES, reach=2).double()
    positions = Positions.graph([sorted(edges)], sizes=[size])
    q, k = qk(positions)
    bias = model.bias(q, k, AttentionContext(model.prepare(positions), 1))
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(size))
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    for t in range(size):
        for s in range(size):
            wanted = model.scalars.weight[number(relation(lengths, t, s), 2)]
            assert torch.equal(bias[0, :, t, s], wanted)


def test_scalars_start_between_minus_one_and_one():
    torch.manual_seed(0)
    weight = build("graformer", **(SIZES | {"max_length": 500})).scalars.weight.detach()
    assert weight.shape == (1002, 2)
    assert float(weight.abs().max()) <= 1
    assert float(weight.var()) == pytest.approx(1 / 3, rel=0.1)


def test_subwords_of_one_word_stand_at_their_distance_in_tokens():
    model = build("graformer", **SIZES, reach=3, subwords=2)
    assert model.scalars.num_embeddings == 8 + 4
    words = [0, 0, 0, 0, 1]
    with torch.no_grad():
        model.scalars.weight.copy_(torch.arange(12.0).unsqueeze(1).expand(12, 2))
        state = model.prepare(Positions.graph([[(0, 1)]], words=[words]))
    q = torch.zeros(1, 2, 5, 4)
    actual = model.bias(q, q, AttentionContext(state, 0))[0, 1].tolist()
    # 8 and 9 are the distances 1 and -1, 10 and 11 are 2 and -2 and farther
    assert actual == [
        [0, 8, 10, 10, 2],
        [9, 0, 8, 10, 2],
        [11, 9, 0, 8, 2],
        [11, 11, 9, 0, 2],
        [3, 3, 3, 3, 0],
    ]
