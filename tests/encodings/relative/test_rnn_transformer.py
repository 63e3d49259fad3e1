"""The GRU of the RNN-Transformer against its gates written out."""

import math

import pytest
import torch

from floater import PositionError, Positions, build

SIZES = {"dim": 4, "heads": 2, "layers": 1, "max_length": 9}


def step(gru, x, h):
    """One step of Cho et al. 2014, gates in PyTorch's order: reset, update, new."""

    def affine(weight, bias, y):
        return [
            b + sum(w * value for w, value in zip(row, y, strict=True))
            for row, b in zip(weight.tolist(), bias.tolist(), strict=True)
        ]

    a, b = affine(gru.weight_ih_l0, gru.bias_ih_l0, x), affine(gru.weight_hh_l0, gru.bias_hh_l0, h)
    new = []
    for i in range(4):
        reset = 1 / (1 + math.exp(-a[i] - b[i]))
        update = 1 / (1 + math.exp(-a[4 + i] - b[4 + i]))
        candidate = math.tanh(a[8 + i] + reset * b[8 + i])
        new.append((1 - update) * candidate + update * h[i])
    return new


def test_padding_is_passed_over_wherever_it_stands():
    torch.manual_seed(0)
    model = build("rnn_transformer", **SIZES).double()
    columns = [[0, 1, 2, 3, 4], [2, 3, 4], [0, 1], [1, 3, 4], []]
    mask = torch.tensor([[int(n in row) for n in range(5)] for row in columns])
    x = torch.randn(5, 5, 4, dtype=torch.double)
    found = model.embed(x, model.prepare(Positions.from_mask(mask)))
    for b, row in enumerate(columns):
        h = [0.0] * 4
        for column in row:
            h = step(model.gru, x[b, column].tolist(), h)
            assert found[b, column].tolist() == pytest.approx(h)
    assert bool(found.isfinite().all())


def test_it_refuses_times_and_a_cache():
    model = build("rnn_transformer", **SIZES)
    with pytest.raises(PositionError, match="a GRU reads a whole sequence: decode without a cache"):
        model.prepare(Positions.arange(1, offset=3))
    with pytest.raises(PositionError, match="steps of a GRU count tokens; real times need"):
        model.prepare(Positions.times(torch.tensor([[0.5]])))
