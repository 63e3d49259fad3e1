"""What every relative and untied model keeps inside the reference Transformer."""

import pytest
import torch
from transformers import DynamicCache

from floater import FloaterConfig, PositionError, Positions, catalogue
from floater.transformer import FloaterForCausalLM, FloaterForConditionalGeneration
from floater.transformer.blocks import Encoder

# Recurrence over the words and stochastic codes are held by tests of their own.
OTHERS = {"rnn_transformer", "spe_sine", "spe_conv"}
ROWS = {
    name: row
    for name, row in catalogue().items()
    if row.__module__.split(".")[2] in ("relative", "untied") and name not in OTHERS
}
EVERY = pytest.mark.parametrize("name", ROWS)
REAL = {"rotary", "transformer_xl", "tener", "da_transformer", "disan", "alibi", "gaussian", "window"}
TOKENS = torch.randint(3, 37, (3, 10), generator=torch.Generator().manual_seed(0))
LEFT = torch.tensor([[1] * 10, [0] * 2 + [1] * 8, [0] * 5 + [1] * 5])


def made(cls, name, **options):
    torch.manual_seed(0)
    config = FloaterConfig(
        vocab_size=37,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=2,
        num_hidden_layers=2,
        decoder_layers=2,
        training_length=16,
        dropout=0.0,
        position=name,
        position_options=options,
    )
    model = cls(config).double().eval()
    for position in (m for m in model.modules() if type(m) is ROWS.get(name)):
        with torch.no_grad():
            for parameter in position.parameters():
                parameter.normal_(std=0.5)
    return model


@EVERY
def test_gradients_reach_every_parameter_and_are_finite(name):
    encoder = made(Encoder, name)
    x = torch.randn(3, 10, 16, dtype=torch.double)
    encoder(x, Positions.from_mask(LEFT)).square().sum().backward()
    for parameter_name, parameter in encoder.position.named_parameters():
        assert bool(parameter.grad.isfinite().all()), parameter_name
        assert bool(parameter.grad.any()), parameter_name


@EVERY
@torch.no_grad()
def test_padding_on_the_left_changes_nothing(name):
    encoder = made(Encoder, name)
    x = torch.randn(3, 10, 16, dtype=torch.double)
    padded = encoder(x, Positions.from_mask(LEFT))
    for row, n in enumerate(LEFT.sum(1).tolist()):
        alone = encoder(x[row : row + 1, -n:], Positions.arange(n))[0]
        torch.testing.assert_close(padded[row, -n:], alone)


@EVERY
@torch.no_grad()
def test_cached_decoding_of_padded_text_is_the_whole(name):
    model = made(FloaterForCausalLM, name)
    whole = model(TOKENS, attention_mask=LEFT).logits
    cache, parts = DynamicCache(), []
    for start, stop in ((0, 4), (4, 7), (7, 8), (8, 9), (9, 10)):
        out = model(TOKENS[:, start:stop], attention_mask=LEFT[:, :stop], past_key_values=cache)
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1)[LEFT.bool()], whole[LEFT.bool()])


@EVERY
@torch.no_grad()
def test_only_relative_models_do_not_see_a_shift(name):
    encoder = made(Encoder, name)
    x, here = torch.randn(2, 7, 16, dtype=torch.double), Positions.arange(7)
    there = encoder(x, Positions(here.query + 9, here.key + 9))
    same = torch.allclose(there, encoder(x, here), rtol=1e-5, atol=1e-5)
    assert same == (ROWS[name].card.point == "relative")


@EVERY
@torch.no_grad()
def test_the_order_of_tokens_matters(name):
    encoder, x = made(Encoder, name), torch.randn(1, 7, 16, dtype=torch.double)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    straight, permuted = encoder(x, Positions.arange(7))[:, order], encoder(x[:, order], Positions.arange(7))
    assert float((straight - permuted).abs().max()) > 1e-3


@EVERY
def test_one_token(name):
    out = made(Encoder, name)(torch.randn(2, 1, 16, dtype=torch.double), Positions.arange(1))
    assert bool(out.isfinite().all())


@EVERY
@pytest.mark.parametrize("earlier", [0, 3])
def test_no_token(name, earlier):
    model, slots = made(Encoder, name).position, earlier
    state = model.prepare(Positions.arange(0, offset=earlier))
    x, q = torch.zeros(2, 0, 16).double(), torch.zeros(2, 2, 0, 8).double()
    k, logits = torch.zeros(2, 2, slots, 8).double(), torch.zeros(2, 2, 0, slots).double()
    assert model.embed(x, state).shape == x.shape
    new = q.transpose(1, 2)
    assert all(y.shape == new.shape for y in model.qkv(new, new, new, state, 1))
    bias, mask, values = model.bias(q, k, state, 1), model.mask(state, 1), model.values(logits, state, 1)
    assert bias is None or (logits + bias).shape == logits.shape
    assert mask is None or logits.masked_fill(mask, 1).shape == logits.shape
    assert values is None or values.shape == q.shape
    assert model.logits(logits, q, k, state, 1).shape == logits.shape


@EVERY
@torch.no_grad()
def test_real_times_are_served_or_refused(name):
    encoder, x = made(Encoder, name), torch.randn(1, 6, 16, dtype=torch.double)
    whole = Positions.arange(6)
    if name in REAL:
        times = Positions.times(whole.query.double())
        # whole positions have angles of single precision
        torch.testing.assert_close(encoder(x, times), encoder(x, whole), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(encoder(x, Positions.times(whole.query * 1.7)), encoder(x, whole)) or (
            name == "disan"
        )
    else:
        with pytest.raises(PositionError, match=r"real (positions|times) need a model"):
            encoder(x, Positions.times(whole.query.double()))


@EVERY
@torch.no_grad()
def test_bounded_models_end_and_others_go_on(name):
    encoder, x = made(Encoder, name), torch.randn(1, 17, 16, dtype=torch.double)
    if encoder.position.bound is None:
        assert bool(encoder(x, Positions.arange(17)).isfinite().all())
    else:
        assert encoder.position.bound == 16
        encoder(x[:, :16], Positions.arange(16))
        with pytest.raises(PositionError, match="16 was asked for"):
            encoder(x, Positions.arange(17))


@EVERY
def test_mixed_precision_stays_near(name):
    encoder = made(Encoder, name).float()
    x = torch.randn(2, 10, 16)
    full = encoder(x, Positions.arange(10))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = encoder(x, Positions.arange(10))
    mixed.float().square().sum().backward()
    # two blocks of eight significant bits
    torch.testing.assert_close(mixed.float(), full, rtol=0.1, atol=0.15)


@EVERY
@torch.no_grad()
def test_single_precision_is_near_double(name):
    encoder, x = made(Encoder, name), torch.randn(2, 10, 16, dtype=torch.double)
    double = encoder(x, Positions.arange(10))
    torch.testing.assert_close(
        encoder.float()(x.float(), Positions.arange(10)).double(), double, rtol=1e-4, atol=1e-4
    )


@EVERY
def test_a_relative_model_does_not_touch_cross_attention(name):
    model = made(FloaterForConditionalGeneration, name)
    assert not list(model.decoder.memory.parameters())
    assert model(TOKENS, decoder_input_ids=TOKENS[:, :4]).logits.shape == (3, 4, 37)
