"""Shaw's vectors of keys and values against the equations written out."""

import math

import pytest
import torch
from relative_cases import (
    HEADS,
    SIZES,
    WHOLE,
    WIDTH,
    agree,
    build_encoding,
    by_pairs,
    logits,
    queries_and_keys,
)

from floater import FloaterConfig, Positions, build
from floater.encodings import AttentionContext
from floater.encodings.model import count_parameters
from floater.transformer.attention import Attention, SharedInputs
from floater.transformer.uncast import Uncast


def vector(model, table, layer):
    """a of positions t and s (the survey's equation 11, or a pair's own)."""
    if model.max_positions is None:
        return lambda t, s: table[layer, min(max(s - t, -model.clip), model.clip) + model.clip]
    return lambda t, s: table[layer, t, s]


@WHOLE
@pytest.mark.parametrize(
    ("name", "options"), [("shaw", {"clip": 2}), ("shaw", {"clip": 9}), ("shaw_absolute", {})]
)
def test_logits_are_the_surveys_equation_9(name, options, positions):
    model = build_encoding(name, **options)
    q, k = queries_and_keys(positions)
    a = vector(model, model.keys, 1)
    wanted = by_pairs(positions, q, k, lambda q, k, t, s, head: q @ (k + a(t, s)) / 2)
    agree(logits(model, positions, q, k, 1), wanted, q, k, model.keys)


@WHOLE
@pytest.mark.parametrize(
    ("name", "options"), [("shaw", {"clip": 2}), ("shaw", {"clip": 9}), ("shaw_absolute", {})]
)
def test_values_are_the_surveys_equation_10(name, options, positions):
    model = build_encoding(name, **options)
    q, k = queries_and_keys(positions)
    a = vector(model, model.values_, 1)
    weights = logits(model, positions, q, k, 1).detach().softmax(-1).requires_grad_()
    query, key = (x.expand(2, -1).tolist() for x in (positions.query, positions.key))
    vectors = torch.stack(
        [torch.stack([torch.stack([a(t, s) for s in key[b]]) for t in query[b]]) for b in range(2)]
    )
    wanted = (weights[..., None] * vectors[:, None]).sum(-2)
    agree(
        model.value_bias(weights, AttentionContext(model.prepare(positions), 1)),
        wanted,
        weights,
        model.values_,
    )


@pytest.mark.parametrize("length", [4, 23])
def test_attention_is_that_of_wav2vec2_bert_in_transformers(length):
    modeling = pytest.importorskip("transformers.models.wav2vec2_bert.modeling_wav2vec2_bert")
    torch.manual_seed(0)
    config = modeling.Wav2Vec2BertConfig(
        hidden_size=32,
        num_attention_heads=4,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=5,
        right_max_position_embeddings=5,
        attn_implementation="eager",
    )
    theirs = modeling.Wav2Vec2BertSelfAttention(config).eval()
    model = build("shaw", dim=32, heads=4, layers=1, max_length=16, clip=5, values=False)
    attention = Attention(FloaterConfig(hidden_size=32, num_attention_heads=4), 0).eval()
    with torch.no_grad():
        model.keys[0].copy_(theirs.distance_embedding.weight)
    for ours, their in zip(("query", "key", "value", "output"), ("q", "k", "v", "out"), strict=True):
        getattr(attention, ours).load_state_dict(getattr(theirs, f"linear_{their}").state_dict())
    x = torch.randn(2, length, 32)
    actual, _ = attention(x, SharedInputs(model, Uncast(model.prepare(Positions.arange(length)))))
    torch.testing.assert_close(actual, theirs(x)[0], rtol=0, atol=1e-6)


def test_values_may_be_left_out():
    model = build("shaw", **SIZES, values=False)
    assert (
        model.value_bias(torch.zeros(1, HEADS, 3, 3), AttentionContext(model.prepare(Positions.arange(3)), 0))
        is None
    )
    assert sum(p.numel() for p in model.parameters()) == 3 * 33 * WIDTH


def test_vectors_start_as_in_tensor2tensor():
    model = build("shaw", dim=512, heads=8, layers=4, max_length=16, clip=20)
    for table in (model.keys, model.values_):
        for block in table.detach():  # uniform_unit_scaling: a variance of 1 / ((41 + 64) / 2)
            assert float(block.std()) == pytest.approx((2 / (41 + 64)) ** 0.5, rel=0.1)


def test_sinusoids_of_the_clipped_distance_are_vectors_without_parameters():
    model = build("shaw", dim=32, heads=4, layers=2, max_length=16, clip=3, vectors="sinusoidal").double()
    assert not list(model.parameters())
    keys, values = model.block_tables(1)
    expected = torch.stack([wave(distance, 8) for distance in range(-3, 4)])
    assert torch.allclose(keys, expected, atol=1e-12)
    assert torch.equal(keys, values)
    q = torch.randn(1, 4, 6, 8, dtype=torch.float64)
    context = AttentionContext(model.prepare(Positions.arange(6)), 1)
    bias = model.bias(q, q, context)
    for t in range(6):
        for s in range(6):
            clipped = max(-3, min(3, s - t))
            assert torch.allclose(bias[0, :, t, s], q[0, :, t] @ wave(clipped, 8) / 8**0.5, atol=1e-12)


def test_learned_frequencies_start_as_the_fixed_ones_and_learn():
    sizes = {"dim": 32, "heads": 4, "layers": 2, "max_length": 16, "clip": 3}
    fixed, learned = (build("shaw", **sizes, vectors=kind) for kind in ("sinusoidal", "frequencies"))
    assert [count_parameters(model) for model in (fixed, learned)] == [0, 2 * 4]
    for ours, theirs in zip(learned.block_tables(0), fixed.block_tables(0), strict=True):
        assert torch.equal(ours, theirs)
    learned.block_tables(1)[0].sum().backward()
    assert bool((learned.factors.grad[1] != 0).all())
    assert not learned.factors.grad[0].any()


def wave(distance, width):
    rates = [10000 ** (-2 * j / width) for j in range(width // 2)]
    return torch.tensor(
        [f(distance * rate) for rate in rates for f in (math.sin, math.cos)], dtype=torch.float64
    )
