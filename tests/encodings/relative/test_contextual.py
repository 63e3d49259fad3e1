"""Encodings that count by content, and Sandwich: against loops and x-transformers."""

import math

import numpy as np
import pytest
import torch
from relative_cases import (
    DIM,
    HEADS,
    POSITIONS,
    SIZES,
    WIDTH,
    build_encoding,
    by_pairs,
    logits,
    queries_and_keys,
    waves,
)
from torch import nn

from floater import Positions, build
from floater.encodings import AttentionContext

theirs = pytest.importorskip("x_transformers.x_transformers")
LATER = torch.ones(12, 12).triu(1).bool()


def test_sandwich_is_a_product_of_sinusoids():
    model = build("sandwich", **(SIZES | {"dim": 8 * 6, "heads": 6}))
    t = torch.arange(40, dtype=torch.double)[:, None]
    angles = t / 10000 ** (torch.arange(0, 128, 2) / 128)
    products = torch.cat([angles.sin(), angles.cos()], -1)
    products = products @ products.T - 64
    actual = model.prepare(Positions.arange(40)).matrix[0]
    for head in range(6):
        torch.testing.assert_close(actual[head], (products * 6 / (8 * (head + 1))).float())
    assert torch.equal(model.prepare(Positions.arange(3, offset=37)).matrix[0], actual[:, -3:])


@pytest.mark.parametrize("times", [False, True])
def test_sandwich_in_double_precision_has_no_single_slopes(times):
    model = build("sandwich", **(SIZES | {"dim": 8 * 6, "heads": 6})).double()
    t = np.arange(40.0)
    distance = np.abs(t[:, None] - t)
    products = np.cos(distance[..., None] / 10000 ** (np.arange(0, 128, 2) / 128)).sum(-1)
    at = Positions.times(torch.from_numpy(t)[None]) if times else Positions.arange(40)
    actual = model.correlation(model.prepare(at), 0)[0].numpy()
    assert actual.dtype == np.float64
    for head in range(6):
        wanted = 6 / (8 * (head + 1)) * (products - 64)
        np.testing.assert_allclose(actual[head], wanted, rtol=1e-12)


def test_sandwich_has_gradients_in_times():
    model = build("sandwich", **SIZES).double()
    times = torch.tensor([[0.0, 0.7, 3.2]], dtype=torch.double, requires_grad=True)
    (gradient,) = torch.autograd.grad(model.prepare(Positions.times(times))[0, 0, 0, 2], times)
    step = torch.tensor([[0.0, 0.0, 1e-6]], dtype=torch.double)
    up, down = (model.prepare(Positions.times((times + x).detach()))[0, 0, 0, 2] for x in (step, -step))
    torch.testing.assert_close(gradient[0, 2], (up - down).double() / 2e-6, rtol=1e-5, atol=1e-6)


def gated(model, q, k, x, positions, layer=0):
    """Bias of queries and keys (batch, heads, T, width) whose block reads x."""
    context = AttentionContext(model.prepare(positions), layer, x)
    q, k, _ = model.qkv(q.transpose(1, 2), k.transpose(1, 2), q, context)
    return model.bias(q.transpose(1, 2), k.transpose(1, 2), context)


def test_forget_gates_are_those_of_x_transformers():
    torch.manual_seed(0)
    other = theirs.DataDependentAlibi(DIM, HEADS)
    linear = other.to_forget_gates[0]
    model = build("forgetting", **SIZES)
    with torch.no_grad():
        model.weight[0].copy_(linear.weight)
        linear.bias.copy_(torch.randn(HEADS))
        model.gate_bias[0].copy_(linear.bias)
    q, x = torch.randn(2, HEADS, 12, WIDTH), torch.randn(2, 12, DIM)
    actual = gated(model, q, q, x, Positions.arange(12))
    torch.testing.assert_close(
        actual.masked_fill(LATER, 0), other(x).masked_fill(LATER, 0), rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(actual, actual.transpose(-1, -2))


def test_forget_gates_start_at_one_half():
    model = build("forgetting", **SIZES)
    assert not model.gate_bias.any()
    other = build("forgetting", **SIZES, start=5.0)  # as x-transformers
    assert bool((other.gate_bias == 5).all())
    x, q = torch.zeros(1, 4, DIM), torch.zeros(1, HEADS, 4, WIDTH)
    torch.testing.assert_close(
        gated(model, q, q, x, Positions.arange(4))[0, 0, 3].exp(), torch.tensor([1 / 8, 1 / 4, 1 / 2, 1.0])
    )


def test_a_key_carries_its_gate_and_the_dot_product_does_not_see_it():
    model = build("forgetting", **SIZES)
    state, q = model.prepare(Positions.arange(5)), torch.randn(1, 5, HEADS, WIDTH)
    actual, k, v = model.qkv(q, q, q, AttentionContext(state, 0, torch.randn(1, 5, DIM)))
    torch.testing.assert_close((actual * k).sum(-1), (q * q).sum(-1))
    assert v is q
    assert model.scale(actual.shape[-1]) == WIDTH**-0.5
    with torch.no_grad():
        model.gate_bias.fill_(-50.0)  # all is forgotten at once
    context = AttentionContext(state, 0, torch.zeros(1, 5, DIM))
    _, k, _ = model.qkv(q, q, q, context)
    weights = model.bias(q.transpose(1, 2), k.transpose(1, 2), context).softmax(-1)
    torch.testing.assert_close(weights, torch.eye(5).expand_as(weights))


@torch.no_grad()
def test_the_first_release_of_cable_is_forget_gates_of_negated_weights():
    """The bias that `CausalSelfAttention` of axiomlab/Cable, 8bc6b83, adds; its last of five queries."""
    model = build("forgetting", dim=12, heads=3, layers=1, max_length=16)
    model.weight[0] = -waves(3, 12)
    model.gate_bias[0] = -waves(3)
    q = torch.zeros(1, 3, 5, 4)
    wanted = [
        [-8.643903, -8.034027, -7.860533, -5.781396, 0.0],
        [-10.984735, -9.442513, -9.005740, -2.336779, 0.0],
        [-9.128982, -7.876055, -0.913145, -0.318648, 0.0],
    ]
    actual = gated(model, q, q, waves(1, 5, 12).flip(1), Positions.arange(5))[0, :, 4]
    torch.testing.assert_close(actual, torch.tensor(wanted), rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", ["counting", "cached", "left padding", "cached left padding", "packed"])
@torch.no_grad()
def test_the_distances_and_slopes_of_cable_are_the_loop(name):
    positions, layer = POSITIONS[name], 1
    model = build_encoding("cable")
    length, slots = positions.query.shape[1], positions.key.shape[1]
    x = torch.randn(2, slots, DIM, dtype=torch.double)
    q = torch.randn(2, slots, HEADS, WIDTH, dtype=torch.double)
    context = AttentionContext(model.prepare(positions), layer, x)
    query, key, v = model.qkv(q, q, q, context)
    torch.testing.assert_close((query * key).sum(-1), (q * q).sum(-1))  # the dot product sees no more
    assert v is q
    assert model.scale(query.shape[-1]) == WIDTH**-0.5
    actual = model.bias(query.transpose(1, 2)[:, :, slots - length :], key.transpose(1, 2), context)
    valid = torch.ones(2, slots) if positions.key_valid is None else positions.key_valid.expand(2, -1)
    (steps, slopes), (step_bias, slope_bias) = model.weight[layer], model.weight_bias[layer].view(2, HEADS)
    for b in range(2):
        for t in range(slots - length, slots):
            slope = torch.log1p(torch.exp(slopes @ x[b, t] + slope_bias))
            for s in range(slots):
                far = torch.zeros(HEADS, dtype=torch.double)
                for n in range(min(s, t) + 1, max(s, t) + 1):
                    far += (steps @ x[b, n] + step_bias).clamp(min=0) * valid[b, n]
                torch.testing.assert_close(actual[b, :, t - slots + length, s], -slope * far)


def test_counted_positions_are_those_of_x_transformers():
    torch.manual_seed(0)
    other = theirs.CoPE(WIDTH, HEADS, 5)
    nn.init.normal_(other.pos_emb)
    model = build("cope", **SIZES, positions=5)
    with torch.no_grad():
        model.table[1].copy_(other.pos_emb)
    q, k = torch.randn(2, 2, HEADS, 12, WIDTH)
    scores = (q @ k.transpose(-1, -2) / math.sqrt(WIDTH)).masked_fill(LATER, -1e9)
    wanted = other(q / math.sqrt(WIDTH), scores).masked_fill(LATER, 0)
    actual = model.bias(q, k, AttentionContext(model.prepare(Positions.arange(12)), 1)).masked_fill(LATER, 0)
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
    cached = model.bias(q[:, :, -1:], k, AttentionContext(model.prepare(Positions.arange(1, offset=11)), 1))
    torch.testing.assert_close(cached, actual[:, :, -1:])


@pytest.mark.parametrize("positions", [POSITIONS["counting"], POSITIONS["left padding"], POSITIONS["packed"]])
def test_counted_positions_are_the_loop(positions):
    model = build_encoding("cope", positions=3)
    q, k = queries_and_keys(positions)
    table, visible, keys = model.table[1], positions.visible, k

    def score(q, k, t, s, head):
        return q @ k / math.sqrt(WIDTH)

    actual = logits(model, positions, q, keys, 1) - by_pairs(positions, q, keys, score)
    length, slots = q.shape[2], keys.shape[2]
    for b in range(len(q)):
        for t in range(length):
            seen = (
                torch.ones(slots).bool() if visible is None else visible.expand(len(q), *visible.shape[1:])[b]
            )
            seen = seen[t] if seen.ndim == 2 else seen
            slot = slots - length + t
            for s in range(slots):
                if not seen[s] or not seen[slot]:
                    continue
                for head in range(HEADS):
                    gates = [
                        torch.sigmoid(q[b, head, t] @ keys[b, head, n] / math.sqrt(WIDTH))
                        for n in range(min(s, slot), max(s, slot) + 1)
                        if seen[n]
                    ]
                    gated = min(float(sum(gates)), 2.0)
                    low = min(int(gated), 1)
                    vector = table[low] * (1 - gated + low) + table[low + 1] * (gated - low)
                    wanted = q[b, head, t] @ vector / math.sqrt(WIDTH)
                    torch.testing.assert_close(actual[b, head, t, s], wanted)
