"""TENER's two forms against loops over their equations."""

import math

import pytest
import torch
from relative_cases import (
    DIM,
    EVERYWHERE,
    HEADS,
    WIDTH,
    agree,
    build_encoding,
    by_pairs,
    logits,
    queries_and_keys,
)

from floater import FloaterConfig, Positions, build
from floater.transformer.attention import Attention, SharedInputs
from floater.transformer.uncast import Uncast


@EVERYWHERE
def test_the_papers_form(positions):
    model = build_encoding("tener")
    q, k = queries_and_keys(positions)

    def score(q, k, t, s, head):
        angles = [(t - s) * 10000 ** (-2 * i / WIDTH) for i in range(WIDTH // 2)]
        r = torch.tensor([f(a) for a in angles for f in (math.sin, math.cos)], dtype=torch.double)
        return q @ k + q @ r + model.u[1, head] @ k + model.v[1, head] @ r

    actual = logits(model, positions, q, k, 1)
    agree(actual, by_pairs(positions, q, k, score), q, k, model.u, model.v)


@EVERYWHERE
def test_the_released_form(positions):
    model = build_encoding("tener", form="released")
    q, k = queries_and_keys(positions)

    def wave(distance):
        half = WIDTH // 2
        angles = [distance * math.exp(-i * math.log(10000) / (half - 1)) for i in range(half)]
        waves = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        return torch.tensor(waves, dtype=torch.double)

    def score(q, k, t, s, head):
        u, v = model.u[1, head], model.v[1, head]
        return (q + u) @ k + (q + v) @ wave(s - t) + k @ wave(t - s)

    actual = logits(model, positions, q, k, 1)
    agree(actual, by_pairs(positions, q, k, score), q, k, model.u, model.v)


def test_keys_of_the_paper_are_slices_of_what_the_block_reads():
    torch.manual_seed(0)
    config = FloaterConfig(hidden_size=DIM, num_attention_heads=HEADS)
    attention, model = Attention(config, 1).double(), build_encoding("tener")
    x = torch.randn(2, 5, DIM, dtype=torch.double)
    positions = Positions.arange(5)
    actual, _ = attention(x, SharedInputs(model, Uncast(model.prepare(positions))))
    q, v = (
        linear(x).view(2, 5, HEADS, WIDTH).transpose(1, 2) for linear in (attention.query, attention.value)
    )
    k = torch.stack(x.split(WIDTH, -1), 1)
    out = logits(model, positions, q, k, 1).softmax(-1) @ v
    torch.testing.assert_close(actual, attention.output(out.transpose(1, 2).flatten(-2)))
    actual.sum().backward()
    assert not attention.key.weight.grad.any()


@pytest.mark.parametrize("layers", [1, 6, 24])
def test_the_biases_start_alike_however_many_blocks_there_are(layers):
    torch.manual_seed(0)
    model = build("tener", dim=512, heads=8, layers=layers, max_length=16)
    for vector in (model.u, model.v):
        assert float(vector.std()) == pytest.approx((2 / (8 + 64)) ** 0.5, rel=0.1)
