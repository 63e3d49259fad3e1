"""Linear attention against its sums written out, and stochastic positions in it."""

import math

import pytest
import torch
from transformer_cases import config, made, tokens
from transformers import DynamicCache

from floater import PositionError, build, catalogue
from floater.encodings import AttentionContext
from floater.transformer import (
    FloaterForCausalLM,
    FloaterForConditionalGeneration,
    FloaterForMaskedLM,
    FloaterModel,
)
from floater.transformer.linear import linear_attention

LINEAR = {"attention": "linear"}


def feature(x):
    return torch.where(x > 0, x + 1, x.exp())


def by_pairs(q, k, v, scale, allowed):
    """One query and one key at a time; zeros where there is no key."""
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    for b, h, t in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        total, norm = torch.zeros(v.shape[-1], dtype=q.dtype), 0.0
        for s in range(k.shape[2]):
            if allowed(b, t, s):
                a, c = (feature(y * math.sqrt(scale)) for y in (q[b, h, t], k[b, h, s]))
                total, norm = total + (a * c).sum() * v[b, h, s], norm + (a * c).sum()
        out[b, h, t] = total / norm if float(norm) else total
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["all", "keys", "pairs"])
@pytest.mark.parametrize("lengths", [(7, 7), (3, 7)])
def test_it_is_a_ratio_of_sums_over_pairs(causal, kind, lengths, monkeypatch):
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
    found = linear_attention(q, k, v, scale=0.3, mask=mask, causal=causal)
    wanted = by_pairs(q, k, v, 0.3, allowed)
    torch.testing.assert_close(found, wanted)
    for a, b in zip(*(torch.autograd.grad(y.sin().sum(), (q, k, v)) for y in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b)


NAMES = ["none", "sinusoidal", "rotary", "floater", "spe_sine", "spe_conv"]


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_models_of_queries_and_keys_take_linear_attention(name):
    model = made(FloaterForCausalLM, name, **LINEAR)
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
def test_stochastic_positions_train_with_linear_attention(cls, gated, name):
    model = made(cls, name, position_options={"gated": gated, "realizations": 8}, **LINEAR).train()
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
    model = made(FloaterModel, name, position_options=options, num_hidden_layers=1, **LINEAR).double()
    seen = {}
    attention, position = model.encoder.blocks[0].attention, model.encoder.position
    hook = attention.register_forward_hook(lambda module, given, out: seen.update(x=given[0], out=out[0]))
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


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_models_that_change_the_attention_matrix_are_refused(name):
    model = build(name, dim=16, heads=2, layers=2, max_length=16, vocabulary=99)
    needs_matrix = model.overrides("bias", "logits", "weights", "mask", "value_bias")
    if needs_matrix:
        with pytest.raises(PositionError, match=f"attention is 'linear', but '{name}' changes the attention"):
            FloaterModel(config(name, **LINEAR))
    else:
        FloaterModel(config(name, **LINEAR))
