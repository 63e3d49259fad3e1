"""Polar positions against x-transformers and against cosines of the distance."""

import pytest
import torch
from relative_cases import HEADS, SIZES, TIMES, WIDTH
from torch import nn
from torch.nn import functional as F

from floater import Positions, build
from floater.encodings import AttentionContext


def turned(model, q, k, positions, layer=0):
    actual = model.qkv(
        q.transpose(1, 2), k.transpose(1, 2), k, AttentionContext(model.prepare(positions), layer)
    )
    return (x.transpose(1, 2) for x in actual[:2])


def test_queries_and_keys_are_those_of_x_transformers():
    parts = pytest.importorskip("x_transformers.x_transformers")
    torch.manual_seed(0)
    other = parts.PolarEmbedding(WIDTH, HEADS)
    nn.init.uniform_(other.learned_bias, -3.0, 0.0)
    model = build("pope", **SIZES)
    with torch.no_grad():
        model.delta[0].copy_(other.learned_bias[:, 0])
    q, k = torch.randn(2, 2, HEADS, 12, WIDTH)
    angles, bias = other(torch.arange(12))
    wanted = parts.apply_polar_pos_emb(q, angles), parts.apply_polar_pos_emb(k, angles + bias)
    for actual, there in zip(turned(model, q, k, Positions.arange(12)), wanted, strict=True):
        torch.testing.assert_close(actual, there, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_logits_are_cosines_of_the_distance():
    torch.manual_seed(0)
    model = build("pope", **SIZES, base=100.0).double()
    nn.init.normal_(model.delta)
    q, k = torch.randn(2, 2, HEADS, 4, WIDTH, dtype=torch.double)
    at = 100.0 ** (-torch.arange(WIDTH, dtype=torch.double) / WIDTH)
    angle = TIMES.delta[:, None, :, :, None] * at + model.delta[1][:, None, None]
    lengths = F.softplus(q)[:, :, :, None] * F.softplus(k)[:, :, None]
    a, b = turned(model, q, k, TIMES, 1)
    torch.testing.assert_close(a @ b.transpose(-1, -2), (lengths * angle.cos()).sum(-1))
    assert model.scale(a.shape[-1]) == WIDTH**-0.5
