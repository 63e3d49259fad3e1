"""GRAPH-BERT's three numbers against networkx."""

import networkx as nx
import torch
from structural_cases import SIZES

from floater import Positions, build
from small_models import wave

# a triangle with a tail, and a node apart
EDGES = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (4, 5)]


def test_rank_and_distance_are_those_from_the_first_node():
    model = build("graph_bert", **SIZES)
    actual = model.numbers(Positions.graph([EDGES], sizes=[7]))[0]
    graph = nx.Graph(EDGES)
    near = nx.pagerank(graph, alpha=0.85, personalization={0: 1.0}, tol=1e-12, max_iter=999)
    order = [0, *sorted(range(1, 6), key=lambda node: -near[node]), 6]
    assert actual[:, 1].tolist() == [order.index(node) for node in range(7)]
    steps = nx.shortest_path_length(graph, 0)
    assert actual[:, 2].tolist() == [steps.get(node, 7) for node in range(7)]


def test_nodes_of_one_colour_cannot_be_told_apart_by_two_rounds():
    model = build("graph_bert", **SIZES)
    colour = model.numbers(Positions.graph([EDGES], sizes=[7]))[0, :, 0].tolist()
    graph = nx.Graph(EDGES)
    nx.set_node_attributes(graph, "same", "colour")
    hashes = nx.weisfeiler_lehman_subgraph_hashes(graph, iterations=2, node_attr="colour")
    for u in range(6):
        for v in range(6):
            assert (colour[u] == colour[v]) == (hashes[u][1] == hashes[v][1])
    assert sorted(set(colour)) == list(range(len(set(colour))))
    assert colour[0] == colour[1]
    assert colour.count(colour[6]) == 1


def test_ties_go_by_index_whatever_the_rounding():
    model = build("graph_bert", **SIZES)
    star = [(0, leaf) for leaf in range(1, 40)]
    assert model.numbers(Positions.graph([star]))[0, :, 1].tolist() == list(range(40))


def test_the_sinusoids_of_the_numbers_are_added():
    model = build("graph_bert", **SIZES, rounds=1, restart=0.3)
    positions = Positions.graph([EDGES, [(1, 0)]], directed=False)
    numbers = model.numbers(positions).tolist()
    wanted = [[[sum(z) for z in zip(*map(wave, row), strict=True)] for row in graph] for graph in numbers]
    actual = model.embed(torch.ones(2, 6, 8), model.prepare(positions))
    torch.testing.assert_close(actual, 1 + torch.tensor(wanted))
