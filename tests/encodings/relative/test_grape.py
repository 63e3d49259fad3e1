"""GRAPE's two biases against loops over tokens, and against numbers of the authors' code.

Those numbers are of model-architectures/GRAPE, f5b539f (torch 2.13), on the inputs of `waves`: the mask that
`CausalSelfAttention` of `model/llama-mha-grape-ap-v1.py` passes to PyTorch's attention, and the result of
`QueryKeyGatedAdditiveBias` of `model/llama-mha-grape-a-querykeygated.py`, at the last of five queries.
"""

import math

import pytest
import torch
from relative_cases import (
    DIM,
    EVERYWHERE,
    HEADS,
    POSITIONS,
    SIZES,
    TIMES,
    WIDTH,
    build_encoding,
    by_pairs,
    logits,
    queries_and_keys,
    waves,
)
from torch.nn import functional as F

from floater import Positions, build
from floater.encodings import AttentionContext

AUTHORS = {"dim": 12, "heads": 3, "layers": 1, "max_length": 16}


def slope(head, heads=HEADS):
    return 2.0 ** (-8 * (head + 1) / heads)


def path_bias(model, x, positions, layer=0):
    context = AttentionContext(model.prepare(positions), layer, x)
    head = torch.zeros(*x.shape[:2], model.spec.heads, model.spec.dim // model.spec.heads, dtype=x.dtype)
    q, k, _ = model.qkv(head, head, head, context)
    return model.bias(q.transpose(1, 2), k.transpose(1, 2), context)


@torch.no_grad()
def test_path_integrals_are_those_of_the_authors():
    model = build("grape_ap", **AUTHORS, width=4)
    model.weight.copy_(waves(12, 12))
    wanted = [
        [-0.281451, -0.256710, -0.253561, -0.134959, 0.0],
        [-0.010875, -0.007573, -0.006088, -0.004384, 0.0],
        [-0.858320, -0.749476, -0.489563, -0.279213, 0.0],
    ]
    actual = path_bias(model, waves(1, 5, 12).flip(1), Positions.arange(5))[0, :, 4]
    torch.testing.assert_close(actual, torch.tensor(wanted), rtol=0, atol=2e-6)


@torch.no_grad()
def test_gated_slopes_are_those_of_the_authors():
    model = build("grape_a", **AUTHORS)
    torch.testing.assert_close(F.softplus(model.slope), torch.ones(1, 3))  # their start
    model.slope.copy_(waves(1, 3))
    model.query.copy_(waves(1, 3, 1, 4))
    model.key.copy_(waves(3, 4).flip(1).view(1, 3, 1, 4))
    q = waves(1, 5, 3, 4)
    wanted = [
        [-0.306427, -0.200679, -0.124304, -0.067842, 0.0],
        [-0.009885, -0.007410, -0.005694, -0.003285, 0.0],
        [-1.518180, -1.175788, -0.766053, -0.446730, 0.0],
    ]
    context = AttentionContext(model.prepare(Positions.arange(5)), 0)
    actual = model.bias(2 * q.transpose(1, 2), q.flip(1).transpose(1, 2), context)[0, :, 4]
    torch.testing.assert_close(actual, torch.tensor(wanted), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "positions", [*(POSITIONS[name] for name in ("counting", "left padding", "packed")), TIMES]
)
@torch.no_grad()
def test_path_integrals_are_sums_over_the_tokens_between(positions):
    layer, width, batch, length = 1, 6, 2, positions.query.shape[1]
    model = build_encoding("grape_ap", width=width)
    x = torch.randn(batch, length, DIM, dtype=torch.double)
    p = F.linear(x, model.weight[layer]).view(batch, length, HEADS, width)
    at = positions.query.expand(batch, -1)
    valid = torch.ones(batch, length) if positions.key_valid is None else positions.key_valid
    turned = torch.empty_like(p)
    for b in range(batch):
        for n in range(length):
            unit = p[b, n] / p[b, n].square().mean(-1, keepdim=True).sqrt()
            cos, sin = math.cos(at[b, n]), math.sin(at[b, n])
            for i in range(width // 2):
                one, other = unit[:, i], unit[:, i + width // 2]
                turned[b, n, :, i] = one * cos + other * sin
                turned[b, n, :, i + width // 2] = other * cos - one * sin
    actual = path_bias(model, x, positions, layer)
    for b in range(batch):
        for t in range(length):
            for s in range(length):
                wanted = torch.zeros(HEADS, dtype=torch.double)
                for n in range(min(s, t) + 1, max(s, t) + 1):
                    fit = (p[b, t] * turned[b, n]).sum(-1) / width
                    wanted += F.logsigmoid(fit) * valid[b, n]
                wanted *= torch.tensor([slope(head) for head in range(HEADS)])
                torch.testing.assert_close(actual[b, :, t, s], wanted)


def test_a_dot_product_does_not_see_what_path_integrals_append():
    model = build("grape_ap", **SIZES)
    q, x = torch.randn(1, 5, HEADS, WIDTH), torch.randn(1, 5, DIM)
    query, key, v = model.qkv(q, q, q, AttentionContext(model.prepare(Positions.arange(5)), 0, x))
    torch.testing.assert_close((query * key).sum(-1), (q * q).sum(-1))
    assert v is q
    assert model.scale(query.shape[-1]) == WIDTH**-0.5


@EVERYWHERE
@pytest.mark.parametrize("gates", ["both", "query", "key"])
@torch.no_grad()
def test_gated_slopes_are_the_loop(positions, gates):
    layer = 1
    model = build_encoding("grape_a", gates=gates)
    q, k = queries_and_keys(positions)

    def gate(x, direction, head):
        unit = direction[layer, head, 0] / direction[layer, head, 0].norm()
        return torch.log1p(torch.exp(x @ unit / math.sqrt(WIDTH)))

    def score(q, k, t, s, head):
        gated = sum(
            gate(x, direction, head)
            for x, direction in ((q, model.query), (k, model.key))
            if direction is not None
        )
        start = torch.log1p(torch.exp(model.slope[layer, head]))
        return q @ k / math.sqrt(WIDTH) - slope(head) * start * abs(t - s) * gated

    torch.testing.assert_close(logits(model, positions, q, k, layer), by_pairs(positions, q, k, score))
    assert (model.query is None, model.key is None) == (gates == "key", gates == "query")
