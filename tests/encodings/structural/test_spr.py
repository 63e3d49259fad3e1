"""Structural position representations against their definition, pair by pair."""

import networkx as nx
import pytest
import torch
from structural_cases import SIZES, TREES, qk

from floater import Positions, build
from floater.encodings import AttentionContext
from small_models import wave


def test_absolute_positions_are_sinusoids_of_depths():
    model = build("spr_absolute", **SIZES)
    actual = model.embed(torch.ones(1, 5, 8), model.prepare(Positions.tree(TREES[:1])))
    torch.testing.assert_close(actual, 1 + torch.tensor([[wave(d) for d in (1, 0, 1, 2, 3)]]))


@pytest.mark.parametrize("sequence", ["add", "fuse"])
def test_sequential_positions_join(sequence):
    torch.manual_seed(0)
    model = build("spr_absolute", **SIZES, sequence=sequence).double()
    actual = model.prepare(Positions.tree(TREES[:1]))[0]
    for token, depth in enumerate((1, 0, 1, 2, 3)):
        # sinusoids are float32
        index, tree = (torch.tensor(wave(i)).double() for i in (token, depth))
        wanted = index + tree
        if sequence == "fuse":
            wanted = torch.tanh(model.index.weight @ index + model.depth.weight @ tree)
        torch.testing.assert_close(actual[token].double(), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sequence", ["none", "add", "fuse"])
def test_the_sequential_position_is_read_at_the_times_of_tokens(sequence):
    """`derives_positions` kept random times from acting, and from being allowed."""
    model = build("spr_absolute", **SIZES, sequence=sequence)
    tree = Positions.tree(TREES[:1])
    shifted = tree.but(query=tree.query + 7, key=tree.key + 7)
    timed = tree.but(query_time=tree.query + 7, key_time=tree.key + 7)
    torch.testing.assert_close(model.prepared(timed), model.prepare(shifted))
    assert torch.equal(model.prepared(timed), model.prepared(tree)) == (sequence == "none")
    assert model.reads_times == (sequence != "none")


def relation(parents, t, s):
    """Wang et al. 2019 as the survey tells it in section 4.3.1."""
    up = nx.DiGraph((node, p) for node, p in enumerate(parents) if p >= 0)
    root = parents.index(-1)
    depth_t, depth_s = (nx.shortest_path_length(up, node, root) for node in (t, s))
    if s in nx.shortest_path(up, t, root) or t in nx.shortest_path(up, s, root):
        return depth_t - depth_s
    return (1 if t > s else -1) * (depth_t + depth_s)


def test_relations_of_a_tree_worked_by_hand():
    #      1
    #    0   2
    #          3
    #            4
    rel = [
        [0, 1, -2, -3, -4],
        [-1, 0, -1, -2, -3],
        [2, 1, 0, -1, -2],
        [3, 2, 1, 0, -1],
        [4, 3, 2, 1, 0],
    ]
    assert [[relation(TREES[0], t, s) for s in range(5)] for t in range(5)] == rel
    model = build("spr_relative", **SIZES)
    state = model.prepare(Positions.tree(TREES[:1]))
    assert (state[1][0] + state[0].start - 16).tolist() == rel


@pytest.mark.parametrize("reach", [None, 2])
@pytest.mark.parametrize("blocks", ["input", "all", [1]])
def test_keys_and_values_get_vectors_of_relations(reach, blocks):
    torch.manual_seed(0)
    model = build("spr_relative", **SIZES, reach=reach, blocks=blocks).double()
    parents = [[1, -1, 1, 2, 3, 0], [2, 2, -1, 2]]
    positions = Positions.tree(parents)
    state, (q, k) = model.prepare(positions), qk(positions)
    weights = torch.rand(2, 2, 6, 6, dtype=torch.float64)
    limit = reach or 16
    chosen = {"input": [0], "all": [0, 1]}.get(blocks, blocks) if isinstance(blocks, str) else blocks
    for layer in range(2):
        bias, values = (
            model.bias(q, k, AttentionContext(state, layer)),
            model.value_bias(weights, AttentionContext(state, layer)),
        )
        if layer not in chosen:
            assert bias is None
            assert values is None
            continue
        keys, vectors = model.keys[chosen.index(layer)], model.vectors[chosen.index(layer)]
        for sample, tree in enumerate(parents):
            for head in range(2):
                for t in range(len(tree)):
                    rows = [limit + max(-limit, min(limit, relation(tree, t, s))) for s in range(len(tree))]
                    for s, row in enumerate(rows):
                        wanted = q[sample, head, t] @ keys[head, row] / 2  # sqrt of head_dim 4
                        torch.testing.assert_close(bias[sample, head, t, s], wanted)
                    if len(tree) == 6:
                        mixed = sum(
                            weights[sample, head, t, s] * vectors[head, r] for s, r in enumerate(rows)
                        )
                        torch.testing.assert_close(values[sample, head, t], mixed)
