"""DA-Transformer against the survey's equations 16 and 17."""

import math

import pytest
import torch
from relative_cases import EVERYWHERE, SIZES, agree, build_encoding, by_pairs, logits, queries_and_keys

from floater import Positions, build


@EVERYWHERE
def test_logits_are_the_loop(positions):
    model = build_encoding("da_transformer")
    q, k = queries_and_keys(positions)

    def score(q, k, t, s, head):
        w, v = model.w[head], model.v[head]
        factor = (1 + torch.exp(v)) / (1 + torch.exp(v - w * abs(t - s)))
        return torch.relu(q @ k * factor) / 2

    agree(logits(model, positions, q, k, 1), by_pairs(positions, q, k, score), q, k, model.w, model.v)


@pytest.mark.parametrize(
    ("w", "v", "limit"), [(-1.0, 0.5, 0.0), (1.0, 0.5, 1 + math.exp(0.5)), (-90.0, 90.0, 0.0)]
)
def test_far_distances_do_not_overflow(w, v, limit):
    model = build("da_transformer", **SIZES)
    torch.nn.init.constant_(model.w, w)
    torch.nn.init.constant_(model.v, v)
    factor = model.prepare(Positions.arange(1, offset=8000))
    factor.sum().backward()
    assert torch.equal(factor[..., -1], torch.ones(1, 2, 1))
    torch.testing.assert_close(factor[0, :, 0, 0].detach(), torch.full((2,), limit))
    assert bool(model.w.grad.isfinite().all())
    assert bool(model.v.grad.isfinite().all())


def test_the_factor_changes_over_the_training_length_and_still_beyond_it():
    torch.manual_seed(0)
    factor = build("da_transformer", **SIZES).prepare(Positions.arange(65))[0, :, 0]
    assert float((factor[:, 16] - 1).abs().max().detach()) > 0.1
    assert not torch.isclose(factor[:, 40], factor[:, 64]).any()


@torch.no_grad()
def test_far_distances_are_not_rounded_in_half_precision():
    """bfloat16 has every fourth number from 512 to 1,024, and w d only three digits of any."""
    model = build("da_transformer", **SIZES)
    torch.nn.init.constant_(model.w, -0.01171875)  # a bfloat16
    positions = Positions.arange(1, offset=1000)
    exact = model.double().prepare(positions)
    half = model.bfloat16().prepare(positions)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), exact, rtol=2**-8, atol=0)
