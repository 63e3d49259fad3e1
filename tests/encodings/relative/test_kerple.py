"""KERPLE's two kernels against the formulas written out, and the bounds of their parameters."""

import math

import pytest
import torch
from relative_cases import (
    EVERYWHERE,
    HEADS,
    LAYERS,
    agree,
    build_encoding,
    by_pairs,
    logits,
    queries_and_keys,
)

from floater import Positions, build
from floater.encodings.relative.alibi import slopes


def confined(name, **options):
    """A model whose parameters are within their bounds."""
    model = build_encoding(name, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(0.1, 1.9)
    return model


@EVERYWHERE
@pytest.mark.parametrize("share_layers", [True, False])
@pytest.mark.parametrize("kind", ["log", "power"])
def test_logits_are_the_kernels(kind, share_layers, positions):
    model = confined("kerple", kind=kind, share_layers=share_layers)
    q, k = queries_and_keys(positions)
    block = 0 if share_layers else 2

    def score(q, k, t, s, head):
        r1, r2, far = model.r1[block, head], model.r2[block, head], abs(s - t)
        if kind == "log":
            return q @ k / 2 - r1 * torch.log(1 + r2 * far)
        return q @ k / 2 - (r1 * torch.exp(r2 * math.log(far)) if far else 0.0)

    agree(logits(model, positions, q, k, 2), by_pairs(positions, q, k, score), model.r1, model.r2)


@EVERYWHERE
def test_a_first_power_is_alibi(positions):
    model, alibi = build_encoding("kerple", kind="power"), build_encoding("alibi")
    with torch.no_grad():
        model.r1.copy_(slopes(2))
        model.r2.fill_(1.0)
    q, k = queries_and_keys(positions)
    first, first_alibi = (logits(each, positions, q, k)[:, 0] for each in (model, alibi))
    torch.testing.assert_close(first, first_alibi)  # the second slope, 2^-8, is below the least r1


@pytest.mark.parametrize(("kind", "r1", "r2"), [("log", 2.0, 1.0), ("power", 1.0, 2.0)])
def test_parameters_start_as_in_the_released_code(kind, r1, r2):
    model = build("kerple", dim=4096, heads=4096, layers=LAYERS, max_length=16, kind=kind)
    for parameter, most in ((model.r1, r1), (model.r2, r2)):
        assert parameter.shape == (1, 4096)  # all blocks share one module there
        assert float(parameter.detach().min()) >= 0.0
        assert float(parameter.detach().max()) <= most
        assert float(parameter.detach().mean()) == pytest.approx(most / 2, rel=0.05)


@pytest.mark.parametrize(("kind", "most"), [("log", torch.inf), ("power", 2.0)])
def test_a_parameter_beyond_a_bound_counts_as_the_bound_and_comes_back(kind, most):
    model = confined("kerple", kind=kind)
    beyond = torch.tensor([[-3.0, 5.0]], dtype=torch.double)
    with torch.no_grad():
        model.r2.copy_(beyond)
    bias = model.correlation(model.prepare(Positions.arange(4)), 0)
    assert torch.equal(model.r2, beyond)
    with torch.no_grad():
        model.r2.copy_(beyond.clamp(0.01, most))
    torch.testing.assert_close(bias, model.correlation(model.prepare(Positions.arange(4)), 0))
    with torch.no_grad():
        model.r2.copy_(beyond)
    for sign in (1.0, -1.0):  # the bias falls as r2 grows
        bias = model.correlation(model.prepare(Positions.arange(4)), 0)
        (gradient,) = torch.autograd.grad((sign * bias).sum(), model.r2)
        grows = sign > 0  # descent moves r2 up
        assert bool(gradient[0, 0] != 0) == grows
        assert bool(gradient[0, 1] != 0) == (most == torch.inf or not grows)


def test_half_precision_keeps_distances_apart():
    model = confined("kerple").bfloat16()
    with torch.no_grad():
        model.r1.fill_(1.0)
        model.r2.fill_(1.0)
    at = Positions(torch.tensor([[8001]]), torch.tensor([[0, 4000]]))
    actual = model.correlation(model.prepare(at), 0)
    torch.testing.assert_close(actual[0, 0, 0], -torch.tensor([8002.0, 4002.0]).log())


def test_blocks_differ_only_where_they_do_not_share():
    for share_layers in (True, False):
        model = confined("kerple", share_layers=share_layers)
        state = model.prepare(Positions.arange(HEADS + 2))
        first, last = (model.correlation(state, layer) for layer in (0, LAYERS - 1))
        assert torch.equal(first, last) == share_layers
