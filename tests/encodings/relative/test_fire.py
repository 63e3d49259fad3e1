"""FIRE against its formula with a plain network, and what its normalisation promises."""

import math

import pytest
import torch
from relative_cases import EVERYWHERE, LAYERS, agree, build_encoding, by_pairs, logits, queries_and_keys
from torch import nn

from floater import Positions, build
from floater.encodings.relative.fire import piecewise


def network(model, block):
    """The block's function as the modules of the released code, without the output bias."""
    width, heads = model.out.shape[2], model.out.shape[1]
    first, last = nn.Linear(1, width).double(), nn.Linear(width, heads, bias=False).double()

    def apply(x):
        build_encoding = {"weight": model.weight[block][:, None], "bias": model.hidden_bias[block]}
        hidden = torch.func.functional_call(first, build_encoding, x[None]).relu()
        return torch.func.functional_call(last, {"weight": model.out[block]}, hidden)

    return apply


@EVERYWHERE
@pytest.mark.parametrize("options", [{"threshold": 2.5}, {"threshold": 40.0}, {"share_layers": True}])
def test_logits_are_the_formula(options, positions):
    model = build_encoding("fire", **options)
    q, k = queries_and_keys(positions)
    block = 0 if "share_layers" in options else 2
    f, c, limit = network(model, block), model.c[block], model.multiplier[block] * model.threshold

    def score(q, k, t, s, head):
        psi = [torch.log(abs(c * x) + 1) for x in (t - s, torch.clamp(abs(limit), min=max(t, s)))]
        return q @ k / 2 + f(math.copysign(1, t - s) * psi[0] / (psi[1] + 1e-6))[head]

    parameters = [model.weight, model.hidden_bias, model.out, model.c]
    if max(positions.key.max(), positions.query.max()) < abs(limit):
        parameters.append(model.multiplier)
    agree(logits(model, positions, q, k, 2), by_pairs(positions, q, k, score), *parameters)


def test_pieces_with_equal_corners_and_units_that_are_constant():
    torch.manual_seed(0)
    weight = torch.tensor([1.0, -2.0, 0.0, 0.0, 3.0, -1.0], dtype=torch.double, requires_grad=True)
    bias = torch.tensor([0.5, -1.0, 2.0, -2.0, 1.5, 0.0], dtype=torch.double, requires_grad=True)
    out = torch.randn(2, 6, dtype=torch.double, requires_grad=True)
    x = torch.tensor([-3.0, -0.51, -0.49, -0.1, 0.1, 4.0], dtype=torch.double, requires_grad=True)
    wanted = out @ (weight[:, None] * x + bias[:, None]).relu()
    agree(piecewise(x, weight, bias, out), wanted, x, weight, bias, out)
    at_corners = torch.tensor([-0.5, 0.0], dtype=torch.double)
    wanted = out @ (weight[:, None] * at_corners + bias[:, None]).relu()
    torch.testing.assert_close(piecewise(at_corners, weight, bias, out), wanted)


def identity(**options):
    """A model whose function is f(x) = x in every head."""
    model = build_encoding("fire", width=2, **options)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([1.0, -1.0]))
        model.hidden_bias.zero_()
        model.out.copy_(torch.tensor([1.0, -1.0]))
    return model


@torch.no_grad()
@pytest.mark.parametrize("length", [10, 3000])
def test_the_input_stays_within_one_at_any_length(length):
    model = identity(threshold=20.0)
    bias = model.correlation(model.prepare(Positions.arange(length)), 0)[0, 0]
    assert float(bias.abs().max()) <= 1.0
    torch.testing.assert_close(bias, -bias.T)
    if length > 20:
        torch.testing.assert_close(bias[:, 0].max(), torch.ones((), dtype=torch.double), atol=1e-5, rtol=0)


@torch.no_grad()
def test_below_the_threshold_only_the_distance_counts():
    model = identity(threshold=20.0)
    model.multiplier.fill_(1.0)
    bias = model.correlation(model.prepare(Positions.arange(40)), 0)[0, 0]
    step = bias.diagonal(-1)
    assert step[:19].unique().numel() == 1
    assert bool((step[20:].diff() < 0).all())


@torch.no_grad()
def test_blocks_differ_only_where_they_do_not_share():
    for share_layers in (True, False):
        model = build_encoding("fire", share_layers=share_layers)
        state = model.prepare(Positions.arange(5))
        first, last = (model.correlation(state, layer) for layer in (0, LAYERS - 1))
        assert torch.equal(first, last) == share_layers


def test_parameters_start_as_in_the_released_module():
    model = build("fire", dim=1024, heads=64, layers=64, max_length=16)
    first, last = nn.Linear(1, 4096), nn.Linear(32, 4096)
    for ours, theirs in (
        (model.weight, first.weight),
        (model.hidden_bias, first.bias),
        (model.out, last.weight),
    ):
        assert float(ours.detach().std()) == pytest.approx(float(theirs.detach().std()), rel=0.05)
        assert float(ours.detach().abs().max()) == pytest.approx(float(theirs.detach().abs().max()), rel=0.01)
    assert model.c.tolist() == pytest.approx([0.1] * 64)
    assert (model.multiplier * model.threshold).tolist() == [512.0] * 64


@torch.no_grad()
def test_half_precision_keeps_distances_apart():
    model = identity().bfloat16()
    model.c.fill_(1.0)
    model.multiplier.fill_(1.0)
    at = Positions(torch.tensor([[8001]]), torch.tensor([[0, 4000]]))
    actual = model.correlation(model.prepare(at), 0)
    torch.testing.assert_close(actual[0, 0, 0], torch.tensor([8002.0, 4002.0]).log() / math.log(8002))


def test_pieces_of_scalars_out_of_order_need_no_warning(recwarn):
    torch.set_warn_always(True)
    try:
        x, (weight, bias), out = torch.randn(4, 5).T, torch.randn(2, 8), torch.randn(3, 8)
        actual = piecewise(x, weight, bias, out)
    finally:
        torch.set_warn_always(False)
    assert torch.equal(actual, piecewise(x.contiguous(), weight, bias, out))
    assert not recwarn.list
