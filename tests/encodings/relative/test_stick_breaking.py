"""Stick-breaking attention against loops over keys, and the sum of its weights."""

import numpy as np
import pytest
import torch
from relative_cases import DIM, HEADS, SIZES

from floater import FloaterConfig, Positions, build
from floater.encodings import AttentionContext
from floater.transformer import FloaterModel


def broken(logits, t, key, current):
    """Weights of one query at slot t by a loop over its keys, the nearest first, the earlier side first."""
    left, weights = 1.0, torch.zeros(len(logits), dtype=torch.double)
    for s in sorted(key, key=lambda s: (abs(s - t), s > t)):
        if s == t and not current:
            continue
        weights[s] = left * logits[s].sigmoid()
        left = left * (1 - logits[s].sigmoid())
    return weights


@pytest.mark.parametrize("current", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_nearer_keys_take_their_share_first(causal, current):
    torch.manual_seed(0)
    model = build("stick_breaking", **SIZES, causal=causal, attend_current=current)
    logits = torch.randn(HEADS, 7, 7, dtype=torch.double)
    seen = torch.ones(7, 7, dtype=torch.bool).tril() if causal else torch.ones(7, 7, dtype=torch.bool)
    visible = logits.masked_fill(~seen, -torch.inf)[None]
    actual = model.weights(visible, AttentionContext(model.prepare(Positions.arange(7)), 0))[0]
    for head in range(HEADS):
        for t in range(7):
            wanted = broken(logits[head, t], t, seen[t].nonzero().flatten().tolist(), current)
            torch.testing.assert_close(actual[head, t], wanted)


def with_remainder(logits, values, t, valid, causal, current):
    """Output of one query in numpy: its keys in turn, then its value by what they leave."""
    earlier = [s for s in range(t - 1, -1, -1) if valid[s]]
    later = [] if causal else [s for s in range(t + 1, len(valid)) if valid[s]]
    keys = [t] if current else []
    for i in range(max(len(earlier), len(later))):
        keys += [*earlier[i : i + 1], *later[i : i + 1]]
    out, left = np.zeros(values.shape[-1]), 1.0
    for s in keys:
        share = left / (1 + np.exp(-logits[s]))
        out, left = out + share * values[s], left - share
    return out + left * values[t]


@pytest.mark.parametrize("current", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_the_querys_value_takes_the_weight_that_is_left(causal, current):
    torch.manual_seed(0)
    model = build("stick_breaking", **SIZES, causal=causal, attend_current=current, remainder=True)
    logits = 2 * torch.randn(2, HEADS, 7, 7, dtype=torch.double)
    values = torch.randn(2, HEADS, 7, 3, dtype=torch.double)
    mask = torch.tensor([[1] * 7, [0, 0, 0, 1, 1, 1, 1]])
    seen = mask.bool()[:, None, None]
    if causal:
        seen = seen & torch.ones(7, 7, dtype=torch.bool).tril()
    context = AttentionContext(model.prepare(Positions.from_mask(mask)), 0)
    actual = model.weights(logits.masked_fill(~seen, -torch.inf), context)
    for b, head, t in np.ndindex(2, HEADS, 7):
        if mask[b, t]:
            arrays = logits[b, head, t].numpy(), values[b, head].numpy()
            wanted = with_remainder(*arrays, t, mask[b].tolist(), causal, current)
            torch.testing.assert_close(actual[b, head, t] @ values[b, head], torch.from_numpy(wanted))
            assert float(actual[b, head, t].sum()) == pytest.approx(1, abs=1e-12)


def test_a_cached_query_takes_the_remainder_of_its_own_slot():
    whole, positions = torch.randn(1, HEADS, 6, 6), Positions.arange(6)
    model = build("stick_breaking", **SIZES, causal=True, remainder=True)
    logits = whole.masked_fill(~torch.ones(6, 6, dtype=torch.bool).tril(), -torch.inf)
    wanted = model.weights(logits, AttentionContext(model.prepare(positions), 0))
    context = AttentionContext(model.prepare(Positions.arange(2, offset=4)), 0)
    torch.testing.assert_close(model.weights(logits[:, :, -2:], context), wanted[:, :, -2:])
    torch.testing.assert_close(wanted[:, :, 0, 0], torch.ones(1, HEADS))  # it sees nothing else


def test_rounding_makes_no_remainder_negative():
    model = build("stick_breaking", **SIZES, causal=True, remainder=True)
    context = AttentionContext(model.prepare(Positions.arange(1, offset=199)), 0)
    actual = model.weights(torch.linspace(-3, 3, 200).view(1, 1, 1, 200), context)
    assert 0 <= float(actual[..., -1]) < 1e-12


def test_large_logits_take_all_and_small_ones_leave_it():
    model = build("stick_breaking", **SIZES, causal=True)
    logits = torch.full((1, 1, 1, 6), -200.0)
    logits[..., 2] = 200.0
    actual = model.weights(logits, AttentionContext(model.prepare(Positions.arange(1, offset=5)), 0))
    assert actual.flatten().tolist() == [0, 0, 1, 0, 0, 0]


@torch.no_grad()
def test_the_weights_that_a_model_returns_are_sticks():
    config = FloaterConfig(
        vocab_size=11,
        hidden_size=DIM,
        num_attention_heads=HEADS,
        num_hidden_layers=1,
        position="stick_breaking",
    )
    model = FloaterModel(config).eval()
    out = model(torch.arange(9)[None], output_attentions=True)
    (weights,) = out.attentions
    assert bool((weights.sum(-1) < 1).all())
    assert bool((weights.diagonal(dim1=-2, dim2=-1) == 0).all())


def test_two_encodings_cannot_both_replace_the_softmax():
    with pytest.raises(ValueError, match="two encodings replace the softmax"):
        build("compose", **SIZES, models=["stick_breaking", "stick_breaking"])


@torch.no_grad()
def test_composed_with_rotary_the_sticks_break_at_rotated_logits():
    both, alone, rotary = (
        build("compose", **SIZES, causal=True, models=["rotary", "stick_breaking"]),
        build("stick_breaking", **SIZES, causal=True),
        build("rotary", **SIZES),
    )
    logits, positions = torch.randn(1, HEADS, 5, 5), Positions.arange(5)
    assert both.overrides("weights", "qkv")
    torch.testing.assert_close(
        both.weights(logits, AttentionContext(both.prepare(positions), 0)),
        alone.weights(logits, AttentionContext(alone.prepare(positions), 0)),
    )
    x = torch.randn(1, 5, HEADS, DIM // HEADS)
    torch.testing.assert_close(
        both.qkv(x, x, x, AttentionContext(both.prepare(positions), 0)),
        rotary.qkv(x, x, x, AttentionContext(rotary.prepare(positions), 0)),
    )
