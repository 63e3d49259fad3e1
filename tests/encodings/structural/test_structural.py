"""The structural Transformer against its equations, one pair of nodes at a time."""

import itertools
import math

import networkx as nx
import pytest
import torch
from structural_cases import SIZES, qk

from floater import Positions, build
from floater.encodings import AttentionContext
from small_models import wave

EDGES = [[(0, 1, 2), (2, 1, 0), (2, 3, 1), (3, 4, 1)], [(1, 0, 1), (3, 2, 2)]]
LENGTHS = [5, 4]
LABELS = 3


def path_ids(edges, size, t, s, labels=LABELS):
    """Numbers of the symbols on the path from t to s: 2 k along an edge, 2 k + 1 against it."""
    if t == s:
        return [2 * labels]
    graph = nx.Graph((u, v) for u, v, _ in edges)
    graph.add_nodes_from(range(size))
    if not nx.has_path(graph, t, s):
        return [2 * labels + 1]
    along = {(u, v): k for u, v, k in edges}
    return [
        2 * along[step] if step in along else 2 * along[step[::-1]] + 1
        for step in itertools.pairwise(nx.shortest_path(graph, t, s))
    ]


def attended(model, ids):
    """Equation 29 of the survey for one sequence."""
    rows = [model.symbol.weight[i] + torch.tensor(wave(n)).double() for n, i in enumerate(ids)]
    queries, keys, values = ([m.weight @ row for row in rows] for m in (model.query, model.key, model.value))
    mixed = []
    for query in queries:
        weights = torch.stack([query @ key / math.sqrt(8) for key in keys]).softmax(0)
        mixed.append(sum(w * v for w, v in zip(weights, values, strict=True)))
    pool = [model.outer.weight @ torch.tanh(model.inner.weight @ m) for m in mixed]
    return sum(a * m for a, m in zip(torch.cat(pool).softmax(0), mixed, strict=True))


def convolved(model, ids, kernel):
    """A maximum over rectified windows; at least one window."""
    rows = [model.symbol.weight[i] for i in ids]
    rows += [torch.zeros(8).double()] * (kernel - len(rows))
    out = []
    for start in range(len(rows) - kernel + 1):
        window = model.convolution.bias
        for offset in range(kernel):
            window = window + model.convolution.weight[:, :, offset] @ rows[start + offset]
        out.append(window.clamp(min=0))
    return torch.stack(out).amax(0)


@pytest.mark.parametrize(
    "options", [{"encoder": "attention"}, {"encoder": "cnn"}, {"encoder": "cnn", "kernel": 2}]
)
def test_pairs_get_vectors_of_the_labels_between_them(options):
    torch.manual_seed(0)
    model = build("structural", **SIZES, labels=LABELS, **options).double()
    positions = Positions.graph(EDGES, sizes=LENGTHS)
    state, (q, k) = model.prepare(positions), qk(positions)
    weights = torch.rand(2, 2, 5, 5, dtype=torch.float64)
    weights[1, :, :, 4] = 0  # padding
    for layer in range(2):
        bias, values = (
            model.bias(q, k, AttentionContext(state, layer)),
            model.value_bias(weights, AttentionContext(state, layer)),
        )
        for sample, (edges, size) in enumerate(zip(EDGES, LENGTHS, strict=True)):
            for t in range(size):
                mixed = torch.zeros(8).double()
                for s in range(size):
                    ids = path_ids(edges, size, t, s)
                    if options["encoder"] == "attention":
                        r = attended(model, ids)
                    else:
                        r = convolved(model, ids, options.get("kernel", 4))
                    key, value = r @ model.keys[layer], r @ model.vectors[layer]
                    for head in range(2):
                        part = slice(4 * head, 4 * head + 4)
                        wanted = q[sample, head, t] @ key[part] / 2
                        # the sinusoids are float32
                        torch.testing.assert_close(bias[sample, head, t, s], wanted, rtol=1e-5, atol=1e-6)
                        mixed[part] += weights[sample, head, t, s] * value[part]
                actual = values[sample, :, t].flatten()
                torch.testing.assert_close(actual, mixed, rtol=1e-5, atol=1e-6)


def test_each_distinct_sequence_is_encoded_once():
    model = build("structural", **SIZES)
    chain = Positions.tree([list(range(-1, 29))])
    assert model.prepare(chain).vectors.shape == (1, 59, 8)  # 29 lengths up, 29 down, and none


def test_all_parameters_of_the_convolution_are_trained():
    torch.manual_seed(0)
    model = build("structural", **SIZES, labels=LABELS, encoder="cnn").double()
    positions = Positions.graph(EDGES, sizes=LENGTHS)
    state, (q, k) = model.prepare(positions), qk(positions)
    out = sum(
        model.bias(q, k, AttentionContext(state, n)).sin().sum()
        + model.value_bias(q @ k.mT, AttentionContext(state, n)).sum()
        for n in range(2)
    )
    out.backward()
    for name, parameter in model.named_parameters():
        assert bool(parameter.grad.isfinite().all()), name
        assert bool(parameter.grad.any()), name
