"""Properties of every position model over trees and graphs."""

import itertools

import networkx as nx
import pytest
import torch
from structural_cases import LABELS, OPTIONS, ROWS, SIZES, TREES, encoder, qk

from floater import PositionError, Positions, build, catalogue
from floater.encodings import AttentionContext
from floater.encodings.structural.base import mixture, scores
from floater.encodings.structural.floater_tree import path_lengths
from floater.structures import trees
from floater.transformer import FloaterConfig, FloaterForCausalLM, FloaterForMaskedLM

TREE_ROWS = [name for name in ROWS if catalogue()[name].needs == "tree"]


@pytest.mark.parametrize("name", ROWS)
def test_positions_without_the_structure_are_refused_with_the_builder(name):
    model = build(name, **SIZES)
    builder = rf"'{name}' reads a tree, .*Positions\.tree\(parents\)"
    if name not in TREE_ROWS:
        builder = rf"'{name}' reads a graph, .*Positions\.graph\(edges\)"
    with pytest.raises(PositionError, match=builder):
        model.prepare(Positions.arange(3))
    if name in TREE_ROWS:
        with pytest.raises(PositionError, match=builder):
            model.prepare(Positions.graph([[(0, 1)]]))


@pytest.mark.parametrize("name", ROWS)
def test_models_without_structure_at_hand_say_so(name):
    config = FloaterConfig.preset("tiny", vocab_size=9, position=name)
    for head in (FloaterForMaskedLM, FloaterForCausalLM):
        with pytest.raises(PositionError, match=r"build the positions with Positions\."):
            head(config)(torch.tensor([[3, 4]]))


@pytest.mark.parametrize("name", ROWS)
def test_one_structure_serves_a_batch(name):
    model = encoder(name)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    one = Positions.tree(TREES[:1], labels=LABELS[:1])
    torch.testing.assert_close(model(x, one), torch.cat([model(row[None], one) for row in x]))


@pytest.mark.parametrize(
    ("name", "options", "more"),
    [
        ("graformer", {}, [(1, 4, 0), (4, 2, 1)]),
        ("graph_gru", {}, []),  # a tree has one path for any two nodes
        ("structural", {}, []),
        ("structural", {"encoder": "cnn"}, []),
        ("laplacian", {"vectors": 2}, [(1, 4, 0), (2, 6, 0), (2, 5, 0)]),  # no ties of size
    ],
)
def test_the_names_of_nodes_do_not_matter(name, options, more):
    model = encoder(name, **options)
    edges = [(0, 1, 0), (1, 2, 2), (3, 2, 1), (3, 4, 0), (5, 4, 1), *more]
    new = [3, 5, 0, 6, 2, 1, 4]
    x = torch.randn(1, 7, 8, dtype=torch.float64)
    there = torch.empty_like(x)
    there[:, new] = x
    renamed = [(new[u], new[v], k) for u, v, k in edges]
    actual = model(there, Positions.graph([renamed], sizes=[7]))
    torch.testing.assert_close(actual[:, new], model(x, Positions.graph([edges], sizes=[7])))


@pytest.mark.parametrize("name", ROWS)
def test_structure_matters(name):
    model = encoder(name)
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    one, two = (model(x, Positions.tree([t])) for t in ([1, -1, 1, 2, 3], [1, -1, 1, 1, 1]))
    assert bool(((one - two).abs() > 1e-3).any())


@pytest.mark.parametrize("name", ROWS)
def test_subwords_inherit_the_place_of_their_word(name):
    model = build(name, **SIZES, **OPTIONS.get(name, {})).double().eval()
    words = [0, 0, 1, 2, 3, 3, 4]
    labelled = Positions.tree(TREES[:1], labels=LABELS[:1])
    shared = Positions.tree(TREES[:1], labels=LABELS[:1], words=[words])
    zeros = torch.zeros(1, 7, 8, dtype=torch.float64)
    added = model.embed(zeros[:, :5], model.prepare(labelled)), model.embed(zeros, model.prepare(shared))
    torch.testing.assert_close(added[1], added[0][:, words])
    if name == "spr_relative":  # its order is that of tokens
        return
    q, k = qk(labelled)
    logits = model.bias(q, k, AttentionContext(model.prepare(labelled), 0))
    if logits is not None:
        subwords = model.bias(q[:, :, words], k[:, :, words], AttentionContext(model.prepare(shared), 0))
        torch.testing.assert_close(subwords, logits[:, :, words][..., words])


def test_scores_and_mixtures_are_sums_over_pairs():
    torch.manual_seed(0)
    q, weights = torch.randn(2, 3, 4, 5), torch.rand(2, 3, 4, 4)
    table, pair = torch.randn(2, 3, 6, 5), torch.randint(0, 6, (2, 4, 4))
    actual, mixed = scores(q, table, pair), mixture(weights, table, pair)
    for b, h, t in itertools.product(range(2), range(3), range(4)):
        rows = table[b, h, pair[b, t]]
        torch.testing.assert_close(actual[b, h, t], rows @ q[b, h, t])
        torch.testing.assert_close(mixed[b, h, t], weights[b, h, t] @ rows)


def test_path_lengths_are_those_of_networkx():
    torch.manual_seed(0)
    for nodes in (1, 2, 9, 20):
        parents = [-1] + [int(torch.randint(0, i, ())) for i in range(1, nodes)]
        graph = nx.Graph([(i, p) for i, p in enumerate(parents) if p >= 0])
        graph.add_nodes_from(range(nodes))
        distances = dict(nx.all_pairs_shortest_path_length(graph))
        actual = path_lengths(trees([parents]))[0]
        for t in range(nodes):
            for s in range(nodes):
                assert actual[t, s] == distances[t][s] * (-1 if s < t else 1)
