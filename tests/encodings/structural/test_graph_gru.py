"""Cai and Lam's relations against a GRU run on one pair of nodes at a time."""

import torch
from structural_cases import SIZES, encoder, qk
from test_structural import EDGES, LABELS, LENGTHS, path_ids

from floater import Positions, build
from floater.encodings import AttentionContext
from floater.transformer.attention import SharedInputs
from floater.transformer.uncast import Uncast


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


@torch.no_grad()
def test_shared_projections_are_equation_30_of_the_survey():
    """(x_t + r_ts) W_q . (x_s + r_st) W_k of a whole block, [r_ts; r_st] = W^r GRU, pair by pair."""
    model = encoder("graph_gru", labels=LABELS, shared=True)
    positions = Positions.graph(EDGES, sizes=LENGTHS)
    x = torch.randn(len(LENGTHS), max(LENGTHS), SIZES["dim"], dtype=torch.float64)
    position, state = model.position, model.position.prepare(positions)
    for block in model.blocks:
        attention = block.attention
        for linear in (attention.query, attention.key):
            torch.nn.init.normal_(linear.bias)
        logits = attention.call(x, SharedInputs(position, Uncast(state))).logits()
        for sample, (edges, size) in enumerate(zip(EDGES, LENGTHS, strict=True)):
            for t in range(size):
                for s in range(size):
                    ids = torch.tensor(path_ids(edges, size, t, s))
                    states = position.gru(position.symbol.weight[ids])[0]
                    ends = torch.cat([states[-1, :4], states[0, 4:]])
                    there, back = (ends @ position.relation[0]).chunk(2)
                    query = attention.query(x[sample, t] + there).view(2, 4)
                    key = attention.key(x[sample, s] + back).view(2, 4)
                    torch.testing.assert_close(logits[sample, :, t, s], (query * key).sum(-1) / 2)
