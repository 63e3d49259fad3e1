"""Encodings of graphs against torch_geometric."""

import networkx as nx
import pytest
import torch
from structural_cases import SIZES

from floater import Positions, build
from floater.encodings import AttentionContext
from floater.structures.graph_features import intimacy, wl_colours

pytest.importorskip("torch_geometric")

GRAPHS = {
    # no eigenvalue twice
    "small": nx.Graph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (1, 4), (2, 6), (2, 5)]),
    "random": nx.gnp_random_graph(17, 0.25, seed=5),
    "in two parts": nx.disjoint_union(nx.lollipop_graph(4, 3), nx.path_graph(5)),
}
EVERY = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)


def data(graph):
    from torch_geometric.data import Data

    edges = torch.tensor([*graph.edges, *((b, a) for a, b in graph.edges)]).T
    return Data(edge_index=edges, num_nodes=graph.number_of_nodes())


def positions(graph):
    """The graph from the edge_index that torch_geometric reads."""
    ours = data(graph)
    return Positions.graph(ours.edge_index, sizes=[ours.num_nodes])


@pytest.mark.parametrize("name", ["small", "random"])
def test_eigenvectors_of_the_laplacian_are_those_of_torch_geometric_up_to_sign(name):
    from torch_geometric.transforms import AddLaplacianEigenvectorPE

    graph = GRAPHS[name]
    theirs = AddLaplacianEigenvectorPE(5, is_undirected=True)(data(graph)).laplacian_eigenvector_pe
    model = build("laplacian", **SIZES, vectors=5).eval()
    actual = model.prepare(positions(graph))[0][0]
    sign = (actual * theirs).sum(0).sign()
    # torch_geometric has weights of single precision
    torch.testing.assert_close(actual * sign, theirs.double(), rtol=1e-4, atol=1e-4)


@EVERY
def test_neighbours_are_those_of_torch_geometric(graph):
    from torch_geometric.utils import to_dense_adj

    ours = data(graph)
    theirs = to_dense_adj(ours.edge_index, max_num_nodes=ours.num_nodes)[0].bool()
    mask = build("laplacian", **SIZES).mask(
        AttentionContext(build("laplacian", **SIZES).prepare(positions(graph)), 0)
    )
    assert torch.equal(mask[0, 0], theirs)


@EVERY
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_colours_part_the_nodes_as_those_of_torch_geometric_do(graph, rounds):
    from torch_geometric.nn import WLConv

    ours, structure = data(graph), positions(graph).structure
    conv, theirs = WLConv(), torch.zeros(ours.num_nodes, dtype=torch.long)
    for _ in range(rounds):
        theirs = conv(theirs, ours.edge_index)
    actual = wl_colours(structure.neighbours, structure.valid, rounds)[0]
    assert torch.equal(actual[:, None] == actual, theirs[:, None] == theirs)


@EVERY
@pytest.mark.parametrize("restart", [0.15, 0.5])
def test_intimacy_is_the_page_rank_of_torch_geometric(graph, restart):
    from torch_geometric.transforms import GDC

    ours, gdc = data(graph), GDC()
    weight = torch.ones(ours.edge_index.shape[1], dtype=torch.double)
    edges, weight = gdc.transition_matrix(ours.edge_index, weight, ours.num_nodes, normalization="row")
    theirs = gdc.diffusion_matrix_exact(edges, weight, ours.num_nodes, method="ppr", alpha=restart)
    assert all(degree for _, degree in graph.degree), "a node without edges goes nowhere"
    torch.testing.assert_close(intimacy(positions(graph).structure.neighbours, restart)[0], theirs)


@EVERY
def test_chances_to_be_back_are_those_of_torch_geometric(graph):
    from torch_geometric.transforms import AddRandomWalkPE

    theirs = AddRandomWalkPE(7)(data(graph)).random_walk_pe
    actual = build("rwpe", **SIZES, steps=7).prepare(positions(graph))[0]
    torch.testing.assert_close(actual.float(), theirs)
