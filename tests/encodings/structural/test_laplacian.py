"""Laplacian positions and attention to neighbours against networkx."""

import networkx as nx
import numpy as np
import pytest
import torch
from structural_cases import SIZES, encoder

from floater import Positions, build
from floater.encodings import AttentionContext

GRAPH = nx.Graph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (1, 4), (2, 6), (2, 5)])  # no eigenvalue twice
VALUES, VECTORS = np.linalg.eigh(nx.normalized_laplacian_matrix(GRAPH, nodelist=range(7)).toarray())


def eigenvectors(count):
    """Of the smallest eigenvalues but the first; the first of the greatest components is positive."""
    assert np.diff(VALUES).min() > 0.01
    actual = torch.from_numpy(VECTORS[:, 1 : count + 1])
    for column in actual.T:
        column *= next(x for x in column if abs(x) > column.abs().max() - 1e-7).sign()
    return actual


def test_projected_eigenvectors_are_added():
    torch.manual_seed(0)
    model = build("laplacian", **SIZES, vectors=3).double().eval()
    actual = model.embed(torch.ones(1, 7, 8).double(), model.prepare(Positions.graph(GRAPH)))
    wanted = 1 + eigenvectors(3) @ model.project.weight.T + model.project.bias
    torch.testing.assert_close(actual[0], wanted)


def test_without_projection_eigenvectors_are_padded():
    model = build("laplacian", **SIZES, vectors=3, projection=False).eval()
    assert not list(model.parameters())
    actual = model.embed(torch.zeros(1, 7, 8).double(), model.prepare(Positions.graph(GRAPH)))
    torch.testing.assert_close(actual[0, :, :3], eigenvectors(3))
    assert not actual[..., 3:].any()


def test_signs_flip_at_random_in_training_alone():
    torch.manual_seed(0)
    model = build("laplacian", **SIZES, vectors=4)
    batch = Positions.graph([GRAPH, GRAPH])
    signs = set()
    for _ in range(40):
        state = model.train().prepare(batch)
        sign = (state[0] * eigenvectors(4)).sum(1)  # vectors of length one
        torch.testing.assert_close(state[0], eigenvectors(4) * sign[:, None])
        signs.update(tuple(row) for row in sign.round().int().tolist())
    assert signs == {(a, b, c, d) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1) for d in (-1, 1)}
    torch.testing.assert_close(model.eval().prepare(batch)[0][1], eigenvectors(4))


@pytest.mark.parametrize("attention", ["neighbours", "all"])
def test_nodes_see_their_neighbours_alone(attention):
    model = encoder("laplacian", vectors=3, attention=attention)
    model.blocks = model.blocks[:1]
    directed = nx.DiGraph(list(GRAPH.edges))  # edges count in both directions
    directed.add_nodes_from([*range(7), 7])
    x = torch.randn(1, 8, 8, dtype=torch.float64, requires_grad=True)
    positions = Positions.graph([list(directed.edges)], sizes=[8])
    out = model(x, positions)
    for t in range(8):
        (gradient,) = torch.autograd.grad(out[0, t].square().sum().sin(), x, retain_graph=True)
        seen = {s for s in range(8) if gradient[0, s].any()}
        neighbours = {t, *(GRAPH[t] if t < 7 else ())}
        assert seen == (neighbours if attention == "neighbours" else set(range(8)))
    assert bool(out.isfinite().all())


def test_a_loop_lets_a_node_see_itself():
    model = build("laplacian", **SIZES)
    mask = model.mask(AttentionContext(model.prepare(Positions.graph([[(0, 0), (0, 1)]])), 0))
    assert mask.tolist() == [[[[True, True], [True, False]]]]


def test_a_graph_with_equal_eigenvalues_does_not_depend_on_the_others_of_its_batch():
    model = build("laplacian", **SIZES, vectors=4, projection=False).eval()
    star, path = [(0, leaf) for leaf in range(1, 6)], [(node, node + 1) for node in range(30)]
    alone = model.prepare(Positions.graph([star]))[0]
    actual = model.prepare(Positions.graph([star, path]))[0][:1, :6]
    torch.testing.assert_close(actual, alone, rtol=0, atol=0)
