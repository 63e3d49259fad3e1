"""xPos against its equation, torchscale's algorithm and x-transformers."""

import math

import pytest
import torch
from relative_cases import HEADS, POSITIONS, SIZES, TIMES, WIDTH, by_pairs, queries_and_keys

from floater import PositionError, Positions, build
from floater.encodings import AttentionContext

LONG = Positions(torch.tensor([[8000, 8001, 8512]]), torch.tensor([[8000, 8001, 8512]]))


def products(model, positions, q, k):
    """Dot products of queries (batch, heads, T, width) with keys of the same positions."""
    state = model.prepare(positions)
    turned = model.qkv(q.transpose(1, 2), k.transpose(1, 2), k, AttentionContext(state, 0))
    return torch.einsum("bthi,bshi->bhts", *turned[:2])


@pytest.mark.parametrize("positions", [POSITIONS["counting"], POSITIONS["left padding"], TIMES, LONG])
@pytest.mark.parametrize("pairs", ["interleaved", "half"])
def test_products_are_rotated_and_decay(positions, pairs):
    model = build("xpos", **SIZES, pairs=pairs).double()
    q, k = queries_and_keys(positions)
    half = WIDTH // 2

    def score(a, b, t, s, head):
        total = 0.0
        for i in range(half):
            first, second = (2 * i, 2 * i + 1) if pairs == "interleaved" else (i, i + half)
            one, other = complex(*a.detach()[[first, second]]), complex(*b.detach()[[first, second]])
            angle = (t - s) / 10000 ** (2 * i / WIDTH)
            turned = one * other.conjugate() * complex(math.cos(angle), math.sin(angle))
            total += ((2 * i / WIDTH + 0.4) / 1.4) ** ((t - s) / 512) * turned.real
        return torch.tensor(total, dtype=torch.double)

    torch.testing.assert_close(products(model, positions, q, k), by_pairs(positions, q, k, score))


@pytest.mark.parametrize("length", [1, 6, 7])
def test_centred_positions_of_torchscale_give_the_same_products(length):
    """Its key factors are inverse; its centre, half the length, cancels."""
    q, k = torch.randn(2, 2, HEADS, length, WIDTH, dtype=torch.double).unbind()
    centred = torch.arange(length, dtype=torch.double) - (length + 1) // 2
    zeta = (torch.arange(0, WIDTH, 2, dtype=torch.double) + 0.4 * WIDTH) / (1.4 * WIDTH)
    zeta = (zeta ** (centred[:, None] / 512)).repeat_interleave(2, -1)
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(WIDTH // 2) / (WIDTH // 2))
    sin, cos = (wave.double().repeat_interleave(2, -1) for wave in (angle.sin(), angle.cos()))
    turned = [
        x * cos * factor + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin * factor
        for x, factor in ((q, zeta), (k, 1 / zeta))
    ]
    actual = products(build("xpos", **SIZES), Positions.arange(length), q, k)
    torch.testing.assert_close(actual, turned[0] @ turned[1].mT, rtol=1e-6, atol=1e-6)


def test_x_transformers_gives_the_same_products():
    parts = pytest.importorskip("x_transformers.x_transformers")
    other = parts.RotaryEmbedding(WIDTH, use_xpos=True)
    q, k = torch.randn(2, 2, HEADS, 40, WIDTH).unbind()
    angles, scale = other(torch.arange(40))
    turned = [parts.apply_rotary_pos_emb(x, angles, s) for x, s in ((q, scale), (k, 1 / scale))]
    actual = products(build("xpos", **SIZES), Positions.arange(40), q, k)
    torch.testing.assert_close(actual, turned[0] @ turned[1].mT, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "served"), [(torch.float32, 27195), (torch.float16, 3399)])
def test_products_are_exact_as_far_as_positions_are_served(dtype, served):
    model = build("xpos", **SIZES)
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, HEADS, 2, WIDTH, dtype=torch.double).unbind()
    far, near = (torch.tensor([[start, start + 50]]) for start in (served - 50, 0))
    actual = products(model, Positions(far, far), q.to(dtype), k.to(dtype))
    wanted = products(model, Positions(near, near), q, k)
    near_enough = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(actual.double(), wanted, rtol=near_enough, atol=near_enough)
    at = torch.tensor([[served + 1]])
    with pytest.raises(
        PositionError, match=f"position {served + 1} .*'xpos' serves positions up to {served} in"
    ):
        products(model, Positions(at, at), *[x[:, :, :1].to(dtype) for x in (q, k)])


@pytest.mark.parametrize("served", [27195])
def test_gradients_at_the_last_position_are_finite(served):
    model = build("xpos", **SIZES)
    x = torch.randn(2, HEADS, 2, WIDTH, requires_grad=True)
    at = torch.tensor([[0, served]])
    logits = products(model, Positions(at, at), x, x).masked_fill(torch.ones(2, 2).triu(1).bool(), -torch.inf)
    (logits.softmax(-1) @ x).square().sum().backward()
    assert bool(x.grad.isfinite().all())
