"""The flow of distance against a solver and against the models it contains."""

import math

import pytest
import torch
from torch.nn import functional as F

from floater import Positions, build
from floater.flow import reference_solve
from floater.transformer import FloaterConfig, FloaterForCausalLM, FloaterModel

SIZES = {"dim": 8, "heads": 2, "layers": 2, "max_length": 16}


def build_encoding(**options):
    torch.manual_seed(0)
    return build("floater_relative", **SIZES | options)


def biases(model, positions, layer=0):
    return model.correlation(model.prepare(positions), layer)


@pytest.mark.parametrize("layer", [0, 1])
@torch.no_grad()
def test_a_bias_is_the_flow_of_log_distance_read_out(layer):
    model = build_encoding(clip=None)
    torch.nn.init.normal_(model.flow.field.outer.weight)  # far from linear in u
    positions = Positions.arange(40)
    actual = biases(model, positions, layer)
    u = torch.log1p(torch.arange(40, dtype=torch.double))
    psi = reference_solve(model.flow.field, model.flow.start.flatten(0, 1), u)
    wanted = torch.einsum("nrd,rdh->nrh", psi, model.readout.double())
    for t in (0, 7, 39):
        for s in (0, 7, 8, 39):
            row = 2 * layer + int(s > t)
            torch.testing.assert_close(
                actual[0, :, t, s].double(), wanted[abs(t - s), row], rtol=1e-5, atol=1e-5
            )


@torch.no_grad()
def test_a_constant_field_gives_kerples_logarithm():
    model = build_encoding(causal=True, clip=None)
    for parameter in model.flow.field.parameters():
        parameter.zero_()
    slope = torch.randn(32)
    model.flow.field.outer.bias.copy_(slope)
    actual = biases(model, Positions.arange(60))
    past = torch.arange(60)[:, None] - torch.arange(60)
    start = torch.einsum("d,dh->h", model.flow.start[0, 0], model.readout[0])
    wanted = start[:, None, None] + (slope @ model.readout[0])[:, None, None] * past.abs().add(1).log()
    torch.testing.assert_close(actual[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positions", [Positions.arange(40), Positions.times(torch.arange(40.0)[None])])
@torch.no_grad()
def test_distances_beyond_the_clip_are_read_as_it(positions):
    everything, clipped, half = build_encoding(clip=None), build_encoding(clip=5), build_encoding()
    clipped.load_state_dict(everything.state_dict())
    half.load_state_dict(everything.state_dict())
    delta = positions.delta[0].long()
    whole = biases(everything, positions)[0]
    for model, clip in ((clipped, 5), (half, 8)):
        near = delta.clamp(-clip, clip)
        rows = torch.where(near > 0, 0, near.abs())
        wanted = whole[:, rows, rows + near]
        torch.testing.assert_close(biases(model, positions)[0], wanted, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_tail_is_kerples():
    plain, tailed = build_encoding(), build_encoding(tail=True)
    tailed.load_state_dict(plain.state_dict(), strict=False)
    positions = Positions.arange(30)
    far = positions.delta[0].abs()
    wanted = -F.softplus(torch.tensor(-2.0)) * (1 + math.log(2) * far).log()
    torch.testing.assert_close(
        biases(tailed, positions) - biases(plain, positions), wanted.expand(1, 2, 30, 30)
    )


@torch.no_grad()
def test_the_normaliser_keeps_far_distances_within_the_span_of_training():
    plain, normalised = build_encoding(clip=None), build_encoding(normalise=True)
    normalised.load_state_dict(plain.state_dict())
    short, long = Positions.arange(17), Positions.arange(300)
    torch.testing.assert_close(biases(normalised, short), biases(plain, short))
    farthest = biases(normalised, long)[0, :, 299, 0]
    torch.testing.assert_close(farthest, biases(plain, short)[0, :, 16, 0])  # u = log(1 + 16)


@torch.no_grad()
def test_real_distances_are_between_whole_ones():
    model = build_encoding()
    at = torch.tensor([[0.0, 0.5, 3.0, 3.0]], dtype=torch.double)
    actual, whole = biases(model, Positions.times(at)), biases(model, Positions.arange(4))
    torch.testing.assert_close(actual[0, :, 0, 2], whole[0, :, 0, 3])
    torch.testing.assert_close(actual[0, :, 2, 0], whole[0, :, 3, 0])
    torch.testing.assert_close(actual[0, :, 2, 3], whole[0, :, 0, 0])
    between = model.flow(torch.tensor([[math.log1p(0.5), model.span]])).at(0, "past")[0, 0] @ model.readout[0]
    torch.testing.assert_close(actual[0, :, 1, 0], between)


def test_a_zero_start_is_the_plain_transformer_and_learns():
    sizes = {"vocab_size": 11, "position_options": {"start": "zero"}}
    model = FloaterModel(FloaterConfig.preset("tiny", position="floater_relative", **sizes)).eval()
    plain = FloaterModel(FloaterConfig.preset("tiny", vocab_size=11, position="none")).eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    ids = torch.tensor([[3, 4, 5, 6]])
    out = model(ids).last_hidden_state
    torch.testing.assert_close(out, plain(ids).last_hidden_state)
    out[0, 0, 0].backward()
    assert bool(model.encoder.position.readout.grad.any())


def test_decoding_one_token_at_a_time_is_decoding_the_whole():
    torch.manual_seed(0)
    config = FloaterConfig.preset("tiny", vocab_size=11, position="floater_relative", training_length=8)
    model = FloaterForCausalLM(config).eval()
    ids = torch.randint(3, 11, (2, 20))
    whole, cache, steps = model(ids).logits, None, []
    for column in ids.split(1, 1):
        out = model(column, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-4)


def test_a_causal_stack_has_one_direction():
    assert build_encoding(causal=True).flow.names == ("past",)
    assert build_encoding().flow.names == ("past", "future")
