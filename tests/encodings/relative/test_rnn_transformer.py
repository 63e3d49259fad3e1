"""The GRU of the RNN-Transformer against its gates written out."""

import math

import pytest
import torch

from floater import FloaterConfig, Positions, build
from floater.transformer.attention import Attention, SharedInputs
from floater.transformer.uncast import Uncast

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
    actual = model.embed(x, model.prepare(Positions.from_mask(mask)))
    for b, row in enumerate(columns):
        h = [0.0] * 4
        for column in row:
            h = step(model.gru, x[b, column].tolist(), h)
            assert actual[b, column].tolist() == pytest.approx(h)
    assert bool(actual.isfinite().all())


@pytest.mark.parametrize("clip", [1, 3])
def test_the_rr_transformer_has_shaws_vectors_on_top(clip):
    """Attention over the GRU's outputs, one pair at a time."""
    torch.manual_seed(0)
    config = FloaterConfig(hidden_size=4, num_attention_heads=2, num_hidden_layers=1, dropout=0.0)
    attention, model = Attention(config, 0).double(), build("rr_transformer", **SIZES, clip=clip).double()
    positions, x = Positions.arange(5), torch.randn(2, 5, 4, dtype=torch.double)
    state = model.prepare(positions)
    read = model.embed(x, state)
    h = [0.0] * 4
    for n in range(5):
        h = step(model.gru, x[1, n].tolist(), h)
        assert read[1, n].tolist() == pytest.approx(h)
    actual, _ = attention(read, SharedInputs(model, Uncast(state)))
    q, k, v = (y(read).view(2, 5, 2, 2) for y in (attention.query, attention.key, attention.value))
    out = torch.zeros(2, 5, 2, 2, dtype=torch.double)
    for b, t, head in torch.cartesian_prod(*map(torch.arange, (2, 5, 2))).tolist():
        row = [max(-clip, min(clip, s - t)) + clip for s in range(5)]
        keys, values = (
            torch.stack([table[0, i] for i in row]) for table in (model.shaw.keys, model.shaw.values_)
        )
        weights = ((k[b, :, head] + keys) @ q[b, t, head] / math.sqrt(2)).softmax(0)
        out[b, t, head] = weights @ (v[b, :, head] + values)
    torch.testing.assert_close(actual, attention.output(out.flatten(2)))


def test_vectors_of_distances_start_as_embeddings_do():
    torch.manual_seed(0)
    model = build("rr_transformer", dim=64, heads=2, layers=2, max_length=9)
    for table in model.shaw.parameters():
        assert float(table.detach().std()) == pytest.approx(1, rel=0.05)
