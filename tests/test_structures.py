"""Trees and graphs: builders and algorithms against networkx and plain loops."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floater import Positions
from floater.structures import graphs, trees
from floater.structures.graph_features import (
    distances,
    intimacy,
    laplacian_vectors,
    path_symbols,
    symbols,
    wl_colours,
)
from floater.structures.tree_features import left_child_right_sibling

nx = pytest.importorskip("networkx")


@st.composite
def parent_lists(draw, most=9):
    """The parents of a random tree whose nodes come in any order."""
    size = draw(st.integers(1, most))
    above = [-1] + [draw(st.integers(0, i - 1)) for i in range(1, size)]
    name = draw(st.permutations(range(size)))
    parents = [0] * size
    for i, p in enumerate(above):
        parents[name[i]] = -1 if p < 0 else name[p]
    return parents


@st.composite
def edge_lists(draw, most=7):
    """(number of nodes, labelled edges), loops and both directions included."""
    size = draw(st.integers(1, most))
    pairs = list(itertools.product(range(size), range(size)))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2 * size))
    return size, [(u, v, draw(st.integers(0, 3))) for u, v in chosen]


def tree_of(parents):
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(parents)))
    graph.add_edges_from((p, node) for node, p in enumerate(parents) if p >= 0)
    return graph


def graph_of(size, edges, kind=nx.DiGraph):
    graph = kind()
    graph.add_nodes_from(range(size))
    graph.add_edges_from((u, v, {"label": k}) for u, v, k in edges)
    return graph


@settings(max_examples=40)
@given(st.lists(parent_lists(), min_size=1, max_size=3))
def test_trees_have_the_depths_ancestors_and_common_ancestors_of_networkx(batch):
    tree = trees(batch)
    lowest = tree.common_ancestors
    longest = max(map(len, batch))
    assert tree.valid.tolist() == [[i < len(row) for i in range(longest)] for row in batch]
    for sample, parents in enumerate(batch):
        graph, root = tree_of(parents), parents.index(-1)
        depths = nx.shortest_path_length(graph, root)
        for node in range(len(parents)):
            assert tree.depth[sample, node] == depths[node]
            up = nx.shortest_path(graph, root, node)[::-1]
            assert tree.ancestors[sample, node].tolist()[: len(up)] == up
            assert set(tree.ancestors[sample, node].tolist()[len(up) :]) <= {-1}
            brothers = sorted(graph.successors(parents[node])) if node != root else [node]
            assert tree.child_index[sample, node] == brothers.index(node)
        for (u, v), actual in nx.tree_all_pairs_lowest_common_ancestor(graph):
            assert lowest[sample, u, v] == lowest[sample, v, u] == actual
    assert bool((lowest[~tree.valid] == -1).all())


@settings(max_examples=40)
@given(st.lists(edge_lists(), min_size=1, max_size=3))
def test_distances_are_those_of_networkx(batch):
    structure = graphs([edges for _, edges in batch], sizes=[size for size, _ in batch])
    for sample, (size, edges) in enumerate(batch):
        lengths = dict(nx.all_pairs_shortest_path_length(graph_of(size, edges)))
        actual = structure.distance[sample, :size, :size].tolist()
        assert actual == [[lengths[u].get(v, -1) for v in range(size)] for u in range(size)]


@settings(max_examples=40)
@given(st.lists(edge_lists(), min_size=1, max_size=3))
def test_paths_carry_the_labels_of_the_lowest_of_networkx_shortest_paths(batch):
    structure = graphs([edges for _, edges in batch], sizes=[size for size, _ in batch])
    symbol = symbols(structure.edges)
    rows, pair = path_symbols(symbol)
    assert len(set(map(tuple, rows.tolist()))) == len(rows)
    assert not rows[0].any()
    for sample, (size, edges) in enumerate(batch):
        both = graph_of(size, edges).to_undirected(as_view=True)
        label = {(u, v): 2 * k + 1 for u, v, k in edges}
        label |= {(v, u): 2 * k + 2 for u, v, k in edges if (v, u) not in label}
        for u, v in itertools.product(range(size), range(size)):
            if not nx.has_path(both, u, v):
                assert pair[sample, u, v] == -1
                continue
            lowest = min(nx.all_shortest_paths(both, u, v))
            wanted = [label[step] for step in itertools.pairwise(lowest)]
            wanted += [0] * (rows.shape[1] - len(wanted))
            assert rows[pair[sample, u, v]].tolist() == wanted


@settings(max_examples=40)
@given(st.lists(edge_lists(), min_size=1, max_size=3), st.integers(1, 8))
def test_laplacian_vectors_solve_the_eigenvalue_problem_of_networkx(batch, count):
    structure = graphs([edges for _, edges in batch], sizes=[size for size, _ in batch])
    vectors = laplacian_vectors(structure.neighbours, structure.valid, count)
    assert vectors.shape == (*structure.valid.shape, count)
    for sample, (size, edges) in enumerate(batch):
        graph = graph_of(size, edges, nx.Graph)
        matrix = torch.from_numpy(nx.normalized_laplacian_matrix(graph, weight=None).toarray())
        for node in nx.isolates(graph):
            matrix[node, node] = 1.0  # networkx gives 0 where the paper's I - D^-1/2 A D^-1/2 gives 1
        actual = vectors[sample, :size]
        kept = min(count, size - 1)
        values = torch.linalg.eigvalsh(matrix)[1 : kept + 1]
        torch.testing.assert_close(matrix @ actual[:, :kept], actual[:, :kept] * values)
        torch.testing.assert_close(actual[:, :kept].T @ actual[:, :kept], torch.eye(kept).double())
        assert not actual[:, kept:].any()
        assert not vectors[sample, size:].any()
        for column in actual[:, :kept].T:
            assert next(x for x in column if abs(x) > column.abs().max() - 1e-7) > 0


@settings(max_examples=40)
@given(st.lists(edge_lists(), min_size=1, max_size=3), st.integers(1, 3), st.randoms())
def test_colours_part_nodes_as_networkx_does_and_do_not_depend_on_names(batch, rounds, random):
    structure = graphs([edges for _, edges in batch], sizes=[size for size, _ in batch])
    colours = wl_colours(structure.neighbours, structure.valid, rounds)
    for sample, (size, edges) in enumerate(batch):
        graph = graph_of(size, edges, nx.Graph)
        nx.set_node_attributes(graph, "same", "colour")
        hashes = nx.weisfeiler_lehman_subgraph_hashes(graph, iterations=rounds, node_attr="colour")
        actual = colours[sample, :size].tolist()
        theirs = [hashes[node][rounds - 1] for node in range(size)]
        for u, v in itertools.combinations(range(size), 2):
            assert (actual[u] == actual[v]) == (theirs[u] == theirs[v])
        name = list(range(size))
        random.shuffle(name)
        renamed = graphs([[(name[u], name[v]) for u, v, _ in edges]], sizes=[size])
        again = wl_colours(renamed.neighbours, renamed.valid, rounds)[0].tolist()
        assert actual == [again[name[node]] for node in range(size)]


@settings(max_examples=20)
@given(edge_lists())
def test_intimacy_is_personalised_pagerank(case):
    size, edges = case
    graph = graph_of(size, edges, nx.Graph)
    graph.remove_nodes_from(list(nx.isolates(graph)))  # networkx sends walkers from there home
    if not graph:
        return
    actual = intimacy(graphs(graph).neighbours, 0.15)[0]
    for row, node in zip(actual, graph, strict=True):
        wanted = nx.pagerank(
            graph, alpha=0.85, personalization={node: 1.0}, weight=None, tol=1e-12, max_iter=999
        )
        torch.testing.assert_close(row, torch.tensor(list(wanted.values())).double(), rtol=1e-6, atol=1e-8)


@settings(max_examples=30)
@given(parent_lists())
def test_the_binary_form_hangs_siblings_under_one_another(parents):
    actual, branch = (x[0].tolist() for x in left_child_right_sibling(torch.tensor([parents])))
    for node, parent in enumerate(parents):
        before = [other for other in range(node) if parents[other] == parent and parent >= 0]
        assert actual[node] == (before[-1] if before else parent)
        assert branch[node] == (1 if before else 0)
    trees([actual])  # is a tree


def test_words_give_tokens_the_values_of_their_nodes():
    tree = trees([[-1, 0], [1, -1]], words=[[-1, 0, 0, 1], [0, 1, 1, 1]])
    assert tree.token_valid.tolist() == [[False, True, True, True], [True] * 4]
    assert tree.at(tree.depth).tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]
    between = tree.between(tree.distance)
    for sample, words in enumerate(tree.words.clamp(min=0).tolist()):
        for t, s in itertools.product(range(4), range(4)):
            assert between[sample, t, s] == tree.distance[sample, words[t], words[s]]
    plain = trees([[-1, 0]])
    assert torch.equal(plain.between(plain.distance), plain.distance)


def test_graphs_of_every_kind_are_the_same():
    edges = [(0, 1, 2), (1, 2, 0), (3, 1, 1)]
    wanted = graphs([edges]).edges
    pairs = torch.tensor([(u, v) for u, v, _ in edges]).T
    labels = [[k for _, _, k in edges]]
    named = nx.relabel_nodes(graph_of(4, edges), dict(enumerate("abcd")))
    for actual in (
        graphs(pairs, labels=labels),
        graphs([pairs.numpy()], labels=labels),
        graphs([pairs], labels=labels),
        graphs([[(u, v) for u, v, _ in edges]], labels=labels),
        graphs(named),
        graphs([named]),
    ):
        assert torch.equal(actual.edges, wanted)
    both = graphs([edges + [(v, u, k) for u, v, k in edges]]).edges
    assert torch.equal(graphs([edges], directed=False).edges, both)
    assert torch.equal(graphs(graph_of(4, edges, nx.Graph)).edges, both)
    assert torch.equal(graphs([edges], sizes=[6]).edges[:, :4, :4], wanted)
    assert torch.equal(trees([[-1, 0, 0]], labels=[[9, 1, 2]]).edges, graphs([[(0, 1, 1), (0, 2, 2)]]).edges)


def test_positions_stand_in_the_order_of_tokens_and_know_their_padding():
    right = Positions.tree([[1, -1, 1], [-1, 0], []])
    assert right.query.tolist() == [[0, 1, 2]]
    assert right.key_valid.tolist() == [[True] * 3, [True, True, False], [False] * 3]
    assert Positions.graph([[(0, 1)], [(1, 0)]]).key_valid is None
    left = Positions.tree([[-1, 0], [-1, 0]], words=[[-1, 0, 1], [0, 1, 1]])
    assert left.query.tolist() == [[0, 0, 1], [0, 1, 2]]
    assert left.key_valid.tolist() == [[False, True, True], [True] * 3]


def test_without_trees_there_are_no_depths():
    with pytest.raises(ValueError, match=r"not given as trees; Positions\.tree\(parents\) does"):
        _ = graphs([[(0, 1)]]).depth


@pytest.mark.parametrize("make", [lambda: trees([[], []]), lambda: graphs([[], []]), lambda: trees([])])
def test_nothing_has_no_structure_to_speak_of(make):
    empty = make()
    batch = len(empty.valid)
    assert empty.distance.shape == (batch, 0, 0)
    rows, pair = path_symbols(symbols(empty.edges))
    assert (rows.shape, pair.shape) == ((1, 0), (batch, 0, 0))
    assert laplacian_vectors(empty.neighbours, empty.valid, 2).shape == (batch, 0, 2)
    assert wl_colours(empty.neighbours, empty.valid, 2).shape == (batch, 0)
    if empty.parents is not None:
        assert empty.depth.shape == (batch, 0)
        assert empty.common_ancestors.shape == (batch, 0, 0)


def test_distances_survive_half_precision():
    structure = trees([list(range(-1, 299))])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert int(distances(structure.edges > 0).max()) == 299


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Positions.tree([[-1], [1, 2, 0]]), r"tree 1 has no root: no node's parent is -1"),
        (lambda: Positions.tree([[-1, 0, -1]]), r"tree 0 has 2 roots: nodes 0, 2"),
        (lambda: Positions.tree([[-1, 0], [-1, 3, 1, 2]]), r"tree 1 has a cycle: node 1 .* 1 -> 3 -> 2 -> 1"),
        (lambda: Positions.tree([[-1, 1]]), r"tree 0 has a cycle: node 1 is its own ancestor, 1 -> 1"),
        (lambda: Positions.tree([[-1, 2]]), r"tree 0: node 1 has parent 2; nodes are 0 to 1"),
        (lambda: Positions.tree([[-2]]), r"tree 0: node 0 has parent -2"),
        (lambda: Positions.tree([[-1, 0]], labels=[[0]]), r"tree 0 has 2 nodes and 1 labels"),
        (lambda: Positions.tree([[-1, 0]], labels=[]), r"labels of 0 trees for 1 trees"),
        (lambda: Positions.tree([[-1, 0]], labels=[[0, -1]]), r"tree 0: the edge 0 -> 1 has label -1"),
        (
            lambda: Positions.tree([[-1]], words=[[0, 1]]),
            r"tree 0: token 1 belongs to node 1; nodes are 0 to 0",
        ),
        (lambda: Positions.tree([[-1]], words=[]), r"words of 0 trees for 1 trees"),
        (
            lambda: Positions.graph([[], [(0, 2)]], sizes=[1, 2]),
            r"graph 1 has an edge 0 -> 2; its nodes are 0 to 1",
        ),
        (lambda: Positions.graph([[(0, -1)]]), r"graph 0 has an edge 0 -> -1; its nodes are 0 to 0"),
        (
            lambda: Positions.graph([[(0, 1, 2), (0, 1, 3)]]),
            r"graph 0 has the edge 0 -> 1 twice, with labels 2 and 3",
        ),
        (lambda: Positions.graph([[(0, 1, 2, 3)]]), r"the edge \(0, 1, 2, 3\) is not \(source, target\)"),
        (lambda: Positions.graph([[(0, 1)]], sizes=[2, 2]), r"2 sizes for 1 graphs"),
        (lambda: Positions.graph([[(0, 1)]], labels=[]), r"labels of 0 graphs for 1 graphs"),
        (lambda: Positions.graph([[(0, 1)]], labels=[[1, 2]]), r"graph 0 has 1 edges and 2 labels"),
        (lambda: Positions.graph(torch.zeros(3, 2)), r"edge_index is \(3, 2\); it must be \(2, edges\)"),
        (lambda: Positions.graph([np.zeros((3, 2), int)]), r"edge_index is \(3, 2\)"),
        (lambda: Positions.graph([torch.tensor([[0.0], [1.5]])]), r"\[0.0, 1.5\] is not a list of integers"),
        (lambda: Positions.tree([[-1, 0.5]]), r"\[-1, 0.5\] is not a list of integers"),
        (lambda: Positions.tree([-1, 0, 0]), "-1 is not a list of integers; trees, .* each of a batch"),
        (lambda: Positions.graph([(0, 1), (1, 2)]), "0 is not a list of integers; trees, graphs"),
        (lambda: Positions.graph([[(0, 1)]], sizes=3), "3 is not a list of integers"),
        (lambda: Positions.graph([[(0, 1)]], sizes=["3"]), r"\['3'\] is not a list of integers"),
        (
            lambda: Positions.graph(graph_of(2, [(0, 1, "nsubj")])),
            r"the edge 0 -> 1 has the label 'nsubj'; labels are integers from 0",
        ),
        (
            lambda: Positions(torch.zeros(1, 3), torch.zeros(1, 3), structure=trees([[-1, 0]])),
            r"structure covers 2 keys; there are 3",
        ),
        (
            lambda: Positions(torch.zeros(3, 1), torch.zeros(3, 1), structure=trees([[-1], [-1]])),
            r"the batch sizes differ",
        ),
    ],
)
def test_what_is_no_tree_or_graph_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_few_starts_have_the_rows_of_all():
    structure = graphs([[(0, 1), (1, 2), (4, 3)], [(0, 2)]])
    every, first = distances(structure.neighbours), distances(structure.neighbours, starts=1)
    assert torch.equal(first, every[:, :1])
    every, first = intimacy(structure.neighbours, 0.15), intimacy(structure.neighbours, 0.15, starts=1)
    torch.testing.assert_close(first, every[:, :1], rtol=1e-12, atol=1e-12)


def test_labels_of_numpy_are_integers():
    graph = nx.Graph()
    graph.add_edge("a", "b", label=np.int64(2))
    assert graphs([graph]).edges.max() == graphs([[(0, 1, 2)]]).edges.max()


def test_features_of_graphs_follow_no_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        assert distances(torch.tensor([[[False, True], [False, False]]])).tolist() == [[[0, 1], [-1, 0]]]
    finally:
        torch.set_default_dtype(torch.float32)
