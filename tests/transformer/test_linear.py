"""Linear attention against its sums written out, and stochastic positions in it."""

import csv
import math
from pathlib import Path

import pytest
import torch
from transformer_cases import build_model, config, tokens
from transformers import DynamicCache

from floater import PositionError, build, catalogue
from floater.encodings import AttentionContext
from floater.transformer import (
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterModel,
)
from floater.transformer.linear import directions, feature_count, linear_attention, random_features

LINEAR = {"attention": "linear"}


def feature(x):
    return torch.where(x > 0, x + 1, x.exp())


def weight(a, c):
    return (feature(a) * feature(c)).sum()


def by_pairs(q, k, v, scale, allowed, weight=weight):
    """One query and one key at a time; zeros where there is no key."""
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    for b, h, t in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        total, norm = torch.zeros(v.shape[-1], dtype=q.dtype), 0.0
        for s in range(k.shape[2]):
            if allowed(b, t, s):
                part = weight(*(y * math.sqrt(scale) for y in (q[b, h, t], k[b, h, s])))
                total, norm = total + part * v[b, h, s], norm + part
        out[b, h, t] = total / norm if float(norm) else total
    return out


W = directions(6, 4, 0, torch.device("cpu")).double()


def random_weight(a, c):
    """The Performer's product of a query and a key, without the factors that cancel in a ratio."""
    return sum(((w @ a) - a @ a / 2 + (w @ c) - c @ c / 2).exp() for w in W)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["all", "keys", "pairs"])
@pytest.mark.parametrize("lengths", [(7, 7), (3, 7)])
@pytest.mark.parametrize("w", [None, W], ids=["elu", "random"])
def test_it_is_a_ratio_of_sums_over_pairs(causal, kind, lengths, w, monkeypatch):
    import floater.transformer.linear as module

    monkeypatch.setattr(module, "_CHUNK", 3)
    generator = torch.Generator().manual_seed(0)
    length, slots = lengths
    shapes = (2, 2, length, 4), (2, 2, slots, 4), (2, 2, slots, 3)
    q, k, v = (torch.randn(s, generator=generator, dtype=torch.double, requires_grad=True) for s in shapes)
    valid = None
    if kind == "keys":
        valid = torch.rand(2, slots, generator=generator) > 0.5
        valid[0] = False
    elif kind == "pairs":
        valid = torch.rand(2, length, slots, generator=generator) > 0.5

    def allowed(b, t, s):
        seen = valid is None or bool(valid[b, t, s] if kind == "pairs" else valid[b, s])
        return seen and (not causal or s <= t + slots - length)

    mask = None if valid is None else valid.view(2, 1, -1, slots)
    actual = linear_attention(q, k, v, scale=0.3, mask=mask, causal=causal, w=w)
    wanted = by_pairs(q, k, v, 0.3, allowed, weight if w is None else random_weight)
    torch.testing.assert_close(actual, wanted)
    for a, b in zip(*(torch.autograd.grad(y.sin().sum(), (q, k, v)) for y in (actual, wanted)), strict=True):
        torch.testing.assert_close(a, b)


NAMES = ["none", "sinusoidal", "rotary", "floater", "spe_sine", "spe_conv"]


@pytest.mark.parametrize("attention", ["linear", "performer"])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_models_of_queries_and_keys_take_linear_attention(name, attention):
    model = build_model(FloaterForCausalLM, name, attention=attention)
    ids = tokens(3, 10)
    mask = torch.tensor([[1] * 10, [0] * 2 + [1] * 8, [0] * 5 + [1] * 5])
    whole = model(ids, attention_mask=mask).logits
    cache, parts = DynamicCache(), []
    for start, stop in ((0, 4), (4, 5), (5, 10)):
        parts.append(model(ids[:, start:stop], attention_mask=mask[:, :stop], past_key_values=cache).logits)
    torch.testing.assert_close(torch.cat(parts, 1)[mask.bool()], whole[mask.bool()], rtol=1e-4, atol=2e-5)
    documents = torch.tensor([[0] * 4 + [1] * 6])
    packed = model(ids[:1], document_ids=documents).logits
    torch.testing.assert_close(packed[:, 4:], model(ids[:1, 4:]).logits, rtol=1e-4, atol=2e-5)
    changed = ids.clone()
    changed[:, 6:] = 3
    torch.testing.assert_close(model(changed).logits[:, :6], model(ids).logits[:, :6])


@pytest.mark.parametrize("cls", [FloaterForMaskedLM, FloaterForConditionalGeneration])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", ["spe_sine", "spe_conv"])
@pytest.mark.parametrize("attention", ["linear", "performer"])
def test_stochastic_positions_train_with_linear_attention(cls, gated, name, attention):
    options = {"gated": gated, "realizations": 8}
    model = build_model(cls, name, position_options=options, attention=attention).train()
    model(tokens(2, 6), labels=tokens(2, 6, seed=1)).loss.backward()
    for key, parameter in model.named_parameters():
        assert bool(parameter.grad.isfinite().all()), key
        if "position" in key or "gate" in key:
            assert bool(parameter.grad.any()), key


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", ["spe_sine", "spe_conv"])
@torch.no_grad()
def test_filtered_queries_and_keys_go_through_the_kernel(name, gated):
    """One block written out: q' and k' of the filters, then sums over pairs of their features."""
    options = {"gated": gated, "realizations": 6}
    model = build_model(FloaterModel, name, position_options=options, num_hidden_layers=1, **LINEAR).double()
    seen = {}
    attention, position = model.encoder.blocks[0].attention, model.encoder.position
    hook = attention.register_forward_hook(lambda module, inputs, out: seen.update(x=inputs[0], out=out[0]))
    model(tokens(2, 5))
    hook.remove()
    x = seen["x"]
    q, k, v = (linear(x).view(2, 5, 2, 8) for linear in (attention.query, attention.key, attention.value))
    from floater import Positions

    q, k, v = (
        y.transpose(1, 2)
        for y in position.qkv(q, k, v, AttentionContext(position.prepare(Positions.arange(5)), 0))
    )
    assert q.shape[-1] == k.shape[-1] == 6
    wanted = by_pairs(q, k, v, 6**-0.5, lambda b, t, s: True)
    torch.testing.assert_close(seen["out"], attention.output(wanted.transpose(1, 2).flatten(2)))


def test_random_directions_are_orthogonal_and_as_long_as_normal_vectors():
    w = directions(6000, 8, 1, torch.device("cpu")).double().view(-1, 8, 8)
    products = w @ w.mT
    assert float((products - torch.diag_embed(products.diagonal(dim1=1, dim2=2))).abs().max()) < 1e-4
    assert float(products.diagonal(dim1=1, dim2=2).mean()) == pytest.approx(8, rel=0.02)


def test_random_features_estimate_the_softmax_with_an_error_that_falls():
    """Against PyTorch's softmax attention: 64 times the features, an eighth of the error."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 32, 8, generator=generator, dtype=torch.double)
    q, k = q / 2, k / 2  # the variance is exponential in |q + k|^2
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)

    def error(count):
        w = directions(count, 8, 2, torch.device("cpu")).double()
        return float((linear_attention(q, k, v, scale=8**-0.5, w=w) - expected).square().mean().sqrt())

    assert error(256 * 64) < 0.01
    assert 4 < error(256) / error(256 * 64) < 16
    page = Path(__file__).parents[2] / "docs" / "howto" / "positions"
    with (page / "features.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            assert error(int(row["features"].replace(",", ""))) == pytest.approx(
                float(row["error"]), abs=6e-4
            )
            assert float(expected.std()) == pytest.approx(float(row["outputs"]), abs=0.01)


@pytest.mark.parametrize("queries", [True, False])
def test_features_of_long_vectors_neither_overflow_nor_lose_their_gradient(queries):
    w = directions(64, 256, 0, torch.device("cpu"))
    x = w.clone().requires_grad_()  # the largest exponents that there are, |w|^2 / 2 about 128
    features = random_features(x, w, queries=queries)
    assert bool(features.isfinite().all())
    (gradient,) = torch.autograd.grad(features.sum(), x)
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("width", [64, 256, 512])
def test_random_features_of_wide_heads_do_not_vanish(width):
    """The estimates scatter, but have the size of the softmax."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 64, width, generator=generator)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    w = directions(feature_count(width), width, 0, torch.device("cpu"))
    assert 0.5 < float(linear_attention(q, k, v, scale=width**-0.5, w=w).norm() / expected.norm()) < 4


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_sums_over_long_texts_pass_the_range_of_half_precision(kind, causal, autocast):
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 1500, 64, generator=generator).half()
    w = directions(266, 64, 0, torch.device("cpu")) if kind == "performer" else None
    expected = linear_attention(*(x.float() for x in (q, k, v)), scale=0.125, causal=causal, w=w)
    with torch.autocast("cpu", torch.float16, enabled=autocast):
        actual = linear_attention(q, k, v, scale=0.125, causal=causal, w=w)
    torch.testing.assert_close(actual.float(), expected, rtol=2e-3, atol=2e-3)


@torch.no_grad()
def test_stochastic_positions_estimate_full_attention_by_the_performer():
    """The same weights with softmax attention and with many features: nearly the same outputs."""
    options = {"realizations": 16}
    full = build_model(FloaterModel, "spe_sine", position_options=options)
    errors = []
    for count in (64, 8192):
        linear = build_model(
            FloaterModel,
            "spe_sine",
            position_options=options,
            attention="performer",
            attention_features=count,
        )
        linear.load_state_dict(full.state_dict())
        errors.append(float((linear(tokens(2, 9))[0] - full(tokens(2, 9))[0]).square().mean().sqrt()))
    assert errors[1] < 0.1  # of outputs of order one
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "performr"}, "'performr'; it must be one of 'softmax', 'linear', 'performer'"),
        ({"attention": "performer", "attention_dropout": 0.1}, "no weights to drop"),
        ({"attention_features": 64}, "attention_features are given, but attention is 'softmax'"),
        ({"attention": "performer", "attention_features": 0}, "attention_features is 0"),
        ({"attention": "performer", "attention_temperature": "log"}, "attention is 'performer' and has none"),
    ],
)
def test_what_the_performer_does_not_do_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config("none", **changes)


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_models_that_change_the_attention_matrix_are_refused(name):
    model = build(name, dim=16, heads=2, layers=2, max_length=16, vocabulary=99)
    needs_matrix = model.overrides("bias", "logits", "weights", "mask", "value_bias")
    if needs_matrix:
        with pytest.raises(PositionError, match=f"attention is 'linear', but '{name}' changes the attention"):
            FloaterModel(config(name, **LINEAR))
    else:
        FloaterModel(config(name, **LINEAR))
