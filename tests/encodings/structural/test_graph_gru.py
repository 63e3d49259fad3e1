"""Cai and Lam's relations against a GRU run on one pair of nodes at a time."""

import torch
from structural_cases import SIZES, qk
from test_structural import EDGES, LABELS, LENGTHS, path_ids

from floater import Positions, build
from floater.encodings import AttentionContext


def test_queries_and_keys_get_vectors_of_the_labels_between_them():
    torch.manual_seed(0)
    model = build("graph_gru", **SIZES, labels=LABELS).double()
    positions = Positions.graph(EDGES, sizes=LENGTHS)
    state, (q, k) = model.prepare(positions), qk(positions)
    for layer in range(2):
        bias = model.bias(q, k, AttentionContext(state, layer))
        for sample, (edges, size) in enumerate(zip(EDGES, LENGTHS, strict=True)):
            for t in range(size):
                for s in range(size):
                    ids = torch.tensor(path_ids(edges, size, t, s))
                    states = model.gru(model.symbol.weight[ids])[0]
                    ends = torch.cat([states[-1, :4], states[0, 4:]])  # of both directions
                    r = (model.output.weight @ ends + model.output.bias) @ model.relation[layer]
                    for head in range(2):
                        a, b = r[4 * head : 4 * head + 4], r[8 + 4 * head : 12 + 4 * head]
                        query, key = q[sample, head, t], k[sample, head, s]
                        wanted = ((query + a) @ (key + b) - query @ key) / 2
                        torch.testing.assert_close(bias[sample, head, t, s], wanted)
