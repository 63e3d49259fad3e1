"""Position models in blocks of the Transformer: padding, caching, causality, gradients, lengths."""

import dataclasses

import pytest
import torch
from transformers import DynamicCache

from floater import FloaterConfig, PositionError, Positions, build
from floater.transformer.blocks import Encoder, place

SIZES = {"dim": 8, "heads": 2, "layers": 2, "max_length": 12}
# options for a causal stack, where they must be others
CAUSAL = {"cape": {"normalize": False}, "convolution": {"causal": True}}
CASES = [
    ("axial", {"segment": 3}),
    ("shortformer", {}),
    ("universal", {}),
    ("mvpe", {}),
    ("cape", {}),
    ("dufter_absolute", {}),
    ("complex", {}),
    ("ldpe", {}),
    ("lrpe", {}),
    ("noisy_length", {}),
    ("language_specific", {}),
    ("xl", {}),
    ("xl", {"join": "learned"}),
    ("convolution", {}),
    ("shuffled", {}),
    ("frozen", {}),
    ("rnn_transformer", {}),
    ("spe_sine", {}),
    ("spe_conv", {"kernel": 4, "gated": False}),
    ("chang", {"window": 2, "keys": True}),
]
EVERY = pytest.mark.parametrize(("name", "given"), CASES)
SINUSOIDS = {"shortformer", "universal", "mvpe", "complex", "ldpe", "lrpe", "xl", "cape"}
BOUNDED = {"axial", "dufter_absolute", "language_specific", "frozen"}
WHOLE = {"rnn_transformer", "convolution"}
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0]])


def stack(name, given, causal=False):
    torch.manual_seed(0)
    config = FloaterConfig(
        hidden_size=8,
        num_attention_heads=2,
        intermediate_size=8,
        num_hidden_layers=2,
        training_length=12,
        dropout=0.0,
        position=name,
        position_options=given | (CAUSAL.get(name, {}) if causal else {}),
    )
    encoder = Encoder(config, causal=causal).double().eval()
    for parameter in encoder.position.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return encoder


def with_all(positions, rows):
    """The same, with lengths, languages and a second order, which follow from the row and the position."""
    query = positions.query.expand(len(rows), -1)
    return dataclasses.replace(
        positions,
        target_length=8 + rows,
        language=(query + rows[:, None]) % 2,
        reordered=(5 * query + rows[:, None]) % 7,
    )


ROWS = torch.arange(3)


@EVERY
@torch.no_grad()
def test_padding_on_the_left_or_between_changes_nothing(name, given):
    encoder, x = stack(name, given), torch.randn(3, 6, 8, dtype=torch.double)
    whole = encoder(x, with_all(Positions.from_mask(MASK), ROWS))
    for row in range(3):
        tokens = MASK[row].bool()
        alone = encoder(
            x[row : row + 1, tokens], with_all(Positions.arange(int(tokens.sum())), ROWS[row : row + 1])
        )
        torch.testing.assert_close(whole[row, tokens], alone[0])


@EVERY
@pytest.mark.parametrize("chunk", [1, 4])
@torch.no_grad()
def test_a_cache_changes_nothing_or_is_refused(name, given, chunk):
    encoder, x = stack(name, given, causal=True), torch.randn(2, 6, 8, dtype=torch.double)
    mask = MASK[:2]

    def positions(length, earlier):
        return with_all(place(mask[:, : earlier + length], length, earlier, x.device), ROWS[:2])

    whole, cache, parts = encoder(x, positions(6, 0)), DynamicCache(), []
    for start in range(0, 6, chunk):
        part = x[:, start : start + chunk]
        if name in WHOLE and start:
            with pytest.raises(PositionError, match="decode without a cache"):
                encoder.position.prepare(positions(part.shape[1], start))
            return
        parts.append(encoder(part, positions(part.shape[1], start), cache))
    torch.testing.assert_close(torch.cat(parts, 1)[mask.bool()], whole[mask.bool()])


@EVERY
@torch.no_grad()
def test_a_causal_stack_does_not_see_later_tokens(name, given):
    encoder, x = stack(name, given, causal=True), torch.randn(2, 1, 6, 8, dtype=torch.double)
    x[1, :, :4] = x[0, :, :4]
    before, after = (encoder(y, with_all(Positions.arange(6), ROWS[:1])) for y in x)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@EVERY
def test_gradients_reach_every_parameter_in_training(name, given):
    encoder = stack(name, given).train()
    x = torch.randn(3, 6, 8, dtype=torch.double, requires_grad=True)
    out = encoder(x, with_all(Positions.from_mask(MASK), ROWS))
    (out * torch.randn(out.shape)).sum().backward()
    assert bool(x.grad.isfinite().all())
    for parameter in encoder.position.parameters():
        if parameter.requires_grad:
            assert bool(parameter.grad.isfinite().all())
            assert bool(parameter.grad.any())
        else:
            assert name == "frozen"


@EVERY
@torch.no_grad()
def test_bounded_models_say_so_and_the_others_go_on(name, given):
    encoder, x = stack(name, given), torch.randn(1, 48, 8, dtype=torch.double)
    positions = with_all(Positions.arange(48), ROWS[:1])
    assert (encoder.position.bound is None) == (name not in BOUNDED)
    if name in BOUNDED:
        with pytest.raises(PositionError, match="max_length 12"):
            encoder(x, positions)
    else:
        assert bool(encoder(x, positions).isfinite().all())


@EVERY
@torch.no_grad()
def test_order_matters(name, given):
    encoder, x = stack(name, given), torch.randn(1, 6, 8, dtype=torch.double)
    positions = with_all(Positions.arange(6), ROWS[:1])
    assert not torch.allclose(encoder(x.flip(1), positions).flip(1), encoder(x, positions), atol=1e-3)


@pytest.mark.parametrize(("name", "given"), [case for case in CASES if case[0] in SINUSOIDS])
@torch.no_grad()
def test_autocast_rounds_no_angle(name, given):
    model = build(name, **SIZES, **given).eval()
    positions = with_all(Positions(torch.arange(7990, 8000)[None], torch.arange(7990, 8000)[None]), ROWS[:1])
    x = torch.zeros(1, 10, 8)
    plain, mixed = [], []
    for out, enabled in ((plain, False), (mixed, True)):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            state = model.prepare(positions)
            out += [model.embed(x, state), model.block(x, state, 1), model.inputs(x, state, 1)[0]]
    for a, b in zip(plain, mixed, strict=True):
        # a learned map rounds the waves, but not their angles
        torch.testing.assert_close(a, b, atol=0.02 if given.get("join") else 0.0, rtol=0.0)


@EVERY
@pytest.mark.parametrize("training", [True, False])
def test_no_tokens_are_no_trouble(name, given, training):
    model, x = build(name, **SIZES, **given).train(training), torch.zeros(2, 0, 8)
    state = model.prepare(with_all(Positions.arange(0), ROWS[:2]))
    assert model.embed(x, state).shape == x.shape
    assert model.block(x, state, 1).shape == x.shape
    q = torch.zeros(2, 2, 0, 4)
    bias = model.bias(q, q, state, 1)
    assert bias is None or bias.shape[-2:] == (0, 0)
    q = q.transpose(1, 2)
    assert model.qkv(q, q, q, state, 1)[0].shape[:3] == (2, 0, 2)
