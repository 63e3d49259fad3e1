"""TUPE's comparisons against their equations written out."""

import math

import pytest
import torch

from floater import FloaterConfig, Positions, build
from floater.transformer.attention import Attention, SharedInputs
from floater.transformer.stacks import Encoder
from floater.transformer.uncast import Uncast

DIM, HEADS, WIDTH = 8, 2, 4
SIZES = {"dim": DIM, "heads": HEADS, "layers": 2, "max_length": 16}


def heads(x):
    return torch.stack(x.split(WIDTH, -1), 1)


def written_out(attention, read, value, bias, terms=1):
    """softmax(q k^T / sqrt(terms d) + bias) v of what queries and keys read, and what values do."""
    q, k = (heads(x) for x in read)
    logits = q @ k.transpose(-1, -2) / math.sqrt(terms * WIDTH) + bias
    out = logits.softmax(-1) @ heads(attention.value(value))
    return attention.output(out.transpose(1, 2).flatten(-2))


def parts(name):
    torch.manual_seed(0)
    config = FloaterConfig(hidden_size=DIM, num_attention_heads=HEADS)
    model = build(name, **SIZES).double()
    return Attention(config, 0).double(), model, torch.randn(2, 5, DIM, dtype=torch.double)


def test_bert_a_adds_positions_to_words():
    attention, model, x = parts("bert_a")
    state = model.prepare(Positions.arange(5))
    actual, _ = attention(model.embed(x, state), SharedInputs(model, Uncast(state)))
    y = x + model.tables["0"].weight[:5]
    torch.testing.assert_close(actual, written_out(attention, (attention.query(y), attention.key(y)), y, 0))
    assert model.block(x, state, 1) is x


def test_bert_r_adds_a_scalar_per_distance_too():
    attention, model, x = parts("bert_r")
    state = model.prepare(Positions.arange(5))
    actual, _ = attention(model.embed(x, state), SharedInputs(model, Uncast(state)))
    y = x + model.absolute.tables["0"].weight[:5]
    table = model.relative.table.weight
    bias = torch.stack(
        [torch.stack([table[t - s if s <= t else 16 + s - t] for s in range(5)]) for t in range(5)]
    )
    wanted = written_out(attention, (attention.query(y), attention.key(y)), y, bias.permute(2, 0, 1))
    torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("layer", [0, 1])
def test_bert_ad_projects_positions_apart(layer):
    attention, model, x = parts("bert_ad")
    attention.layer = layer
    p = model.table.weight[:5]
    actual, _ = attention(x, SharedInputs(model, Uncast(model.prepare(Positions.arange(5)))))
    read = attention.query(x) + p @ model.query.weight.T, attention.key(x) + p @ model.key.weight.T
    torch.testing.assert_close(actual, written_out(attention, read, x, 0, terms=4))


def test_bert_a_is_learned_positions_under_another_name():
    assert build("bert_a", **SIZES).state_dict().keys() == build("learned", **SIZES).state_dict().keys()


@pytest.mark.parametrize("name", ["bert_a", "bert_r", "bert_ad"])
def test_a_whole_encoder_runs(name):
    config = FloaterConfig(
        hidden_size=DIM, num_attention_heads=HEADS, num_hidden_layers=2, intermediate_size=8, position=name
    )
    assert Encoder(config)(torch.randn(2, 5, DIM), Positions.arange(5)).shape == (2, 5, DIM)
