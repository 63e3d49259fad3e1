"""Graphormer's bias and degrees against networkx and loops over paths."""

import itertools

import networkx as nx
import pytest
import torch
from structural_cases import SIZES

from floater import Positions
from floater.encodings import AttentionContext
from small_models import randomised


def build_encoding(**options):
    return randomised("graphormer", parameter_std=1.0, **SIZES, **options)


@pytest.mark.parametrize(("hops", "reach"), [(5, 20), (2, 3)])
@torch.no_grad()
def test_biases_are_means_over_the_edges_of_the_shortest_path(hops, reach):
    graph = nx.random_labeled_tree(11, seed=3)
    for index, edge in enumerate(graph.edges):
        graph.edges[edge]["label"] = index % 3
    graph.add_node(11)  # without a path to it
    model = build_encoding(labels=3, hops=hops, reach=reach)
    state = model.prepare(Positions.graph(graph))
    assert state[0][0].tolist() == [graph.degree(node) for node in range(12)]
    bias = model.bias(None, None, AttentionContext(state, 1))[0]
    paths = dict(nx.all_pairs_shortest_path(graph))
    for t in range(12):
        for s in range(12):
            path = paths[t].get(s)
            if path is None:
                wanted = model.distance[reach + 1]
            else:
                labels = [graph.edges[edge]["label"] for edge in itertools.pairwise(path)][:hops]
                edges = [model.label[label] @ model.hop[n] for n, label in enumerate(labels)]
                mean = sum(edges) / len(edges) if edges else 0.0
                wanted = model.distance[min(len(path) - 1, reach)] + mean
            torch.testing.assert_close(bias[:, t, s], wanted)


@torch.no_grad()
def test_degrees_have_two_vectors_and_the_last_ones_are_shared():
    model = build_encoding(degrees=2)
    state = model.prepare(Positions.graph(nx.star_graph(4)))
    x = model.embed(torch.zeros(1, 5, SIZES["dim"], dtype=torch.double), state)[0]
    torch.testing.assert_close(x[0], model.degree[:, 2].sum(0))
    torch.testing.assert_close(x[3], model.degree[:, 1].sum(0))
