"""TUPE against a loop over equations 9 to 11, its comparisons, and proposition 1."""

import math

import pytest
import torch

from floater import FloaterConfig, Positions
from floater.encodings import AttentionContext
from floater.transformer.attention import Attention, SharedInputs
from floater.transformer.uncast import Uncast
from small_models import randomised

DIM, HEADS, WIDTH, LENGTH = 8, 2, 4, 16
SIZES = {"dim": DIM, "heads": HEADS, "layers": 3, "max_length": LENGTH}
MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
PLACEMENTS = {
    "counting": Positions.arange(5),
    "cached": Positions.arange(2, offset=5),
    "left padding": Positions.from_mask(MASK),
    "cached left padding": Positions.from_mask(MASK, queries=2),
    "packed": Positions(torch.tensor([[0, 1, 2, 0, 1]]), torch.tensor([[0, 1, 2, 0, 1]])),
}


def build_encoding(name, **options):
    return randomised(name, **SIZES, **options)


def normed(model, p):
    centred = p - p.mean()
    unit = centred / (centred.square().mean() + model.norm.eps).sqrt()
    return unit * model.norm.weight + model.norm.bias


def bucket(delta):
    back, start = abs(delta), 16 if delta > 0 else 0
    return start + (back if back < 8 else 8 + int(math.log(back / 8) / math.log(16) * 8))


def correlation(model, name, t, s, t_is_cls, s_is_cls, head):
    """Equations 9 to 11 for one pair of one head."""
    rows = slice(head * WIDTH, (head + 1) * WIDTH)

    def product(p, q):
        if model.matrix == "free":
            return model.free[head, p, q]
        p, q = (normed(model, x) for x in (p, q))
        return (model.query.weight[rows] @ p) @ (model.key.weight[rows] @ q) / math.sqrt(2 * WIDTH)

    def theta(n):
        return model.reset[n, head] if model.matrix == "free" else product(model.reset[n], model.reset[n])

    if model.cls != "none" and t_is_cls:
        return theta(0)
    if model.cls != "none" and s_is_cls:
        return theta(1)
    value = product(t, s) if model.matrix == "free" else product(model.table.weight[t], model.table.weight[s])
    return value + (model.relative.table.weight[bucket(s - t), head] if name == "tupe_r" else 0)


@pytest.mark.parametrize("positions", PLACEMENTS.values(), ids=PLACEMENTS)
@pytest.mark.parametrize("cls", ["first", "special", "none"])
@pytest.mark.parametrize("matrix", ["factored", "free"])
@pytest.mark.parametrize("name", ["tupe_a", "tupe_r"])
def test_the_correlation_is_the_loop(name, matrix, cls, positions):
    model = build_encoding(name, cls=cls, matrix=matrix)
    start = positions.key.shape[1] - positions.query.shape[1]
    special = torch.zeros(2, positions.key.shape[1], dtype=torch.bool)
    special[0, 2] = special[1, 0] = special[1, -1] = True
    actual = model.bias(None, None, AttentionContext(model.prepare(positions.but(special=special)), 1))
    actual = actual.expand(2, -1, -1, -1)
    for b in range(2):
        query, key = (x[b % len(x)].tolist() for x in (positions.query, positions.key))
        for i, t in enumerate(query):
            for j, s in enumerate(key):
                is_cls = (t == 0, s == 0) if cls == "first" else (special[b, start + i], special[b, j])
                for head in range(HEADS):
                    wanted = correlation(model, name, t, s, *is_cls, head)
                    torch.testing.assert_close(actual[b, head, i, j], wanted)


def test_a_factored_bias_is_the_product_of_projected_vectors_of_the_distance():
    model = build_encoding("tupe_r", cls="none", relative="factored")
    plain = build_encoding("tupe_a", cls="none")
    plain.load_state_dict(
        {name: value for name, value in model.state_dict().items() if name in plain.state_dict()}
    )
    whole, absolute = (each.correlation(each.prepare(Positions.arange(6)), 0) for each in (model, plain))
    actual = (whole - absolute)[0]
    table = model.relative.table
    for t in range(6):
        for s in range(6):
            r = table.weight[bucket(s - t)]
            for head in range(HEADS):
                rows = slice(head * WIDTH, (head + 1) * WIDTH)
                wanted = (table.query.weight[rows] @ r) @ (table.key.weight[rows] @ r)
                torch.testing.assert_close(actual[head, t, s], wanted)


@pytest.mark.parametrize("name", ["tupe_a", "tupe_r"])
def test_rows_and_columns_of_cls_are_constant_and_the_corner_is_theta_1(name):
    model = build_encoding(name)
    actual = model.correlation(model.prepare(Positions.arange(6)), 0)[0]
    assert torch.equal(actual[:, 0], actual[:, 0, :1].expand(-1, 6))
    assert torch.equal(actual[:, 1:, 0], actual[:, 1:2, 0].expand(-1, 5))
    assert not torch.isclose(actual[:, 0, 0], actual[:, 1, 0]).any()


@pytest.mark.parametrize("name", ["tupe_a", "tupe_r"])
def test_it_is_computed_once_and_shared_by_blocks_and_content_is_scaled_alike(name):
    model = build_encoding(name)
    state = model.prepare(Positions.arange(5))
    bias = model.bias(None, None, AttentionContext(state, 0))
    assert bias is model.bias(None, None, AttentionContext(state, 2))
    config = FloaterConfig(hidden_size=DIM, num_attention_heads=HEADS)
    attention = Attention(config, 2).double()
    x = torch.randn(2, 5, DIM, dtype=torch.double)
    q, k, v = (
        torch.stack(linear(x).split(WIDTH, -1), 1)
        for linear in (attention.query, attention.key, attention.value)
    )
    out = (q @ k.transpose(-1, -2) / math.sqrt(2 * WIDTH) + bias).softmax(-1) @ v
    actual, _ = attention(x, SharedInputs(model, Uncast(state)))
    torch.testing.assert_close(actual, attention.output(out.transpose(1, 2).flatten(-2)))


def test_proposition_1_a_relative_bias_factors_through_sinusoids():
    length = 9
    model = build_encoding("t5", max_distance=20)
    matrix = model.correlation(model.prepare(Positions.arange(length)), 0)[0, 0].detach()
    by_distance = {int(d): matrix[max(0, -d), max(0, d)] for d in range(1 - length, length)}
    # a circulant matrix of twice the size holds it; its eigenvectors are sinusoids
    first = torch.tensor(
        [by_distance.get(j if j < length else j - 2 * length, 0.0) for j in range(2 * length)]
    )
    eigenvalues = torch.stack(
        [
            sum(first[j] * torch.exp(torch.tensor(1j * math.pi * j * f / length)) for j in range(2 * length))
            for f in range(2 * length)
        ]
    ).to(torch.cdouble)
    steps, waves = torch.arange(length).double()[:, None], torch.arange(2 * length).double()
    g = torch.exp(1j * math.pi * steps * waves / length) / math.sqrt(2 * length)
    product = g @ torch.diag(eigenvalues) @ g.conj().T
    torch.testing.assert_close(product.real, matrix, rtol=1e-5, atol=1e-5)
    assert float(product.imag.abs().max()) < 1e-5
