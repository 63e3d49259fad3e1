"""CAPE: what its augmentation may and may not do, and sinusoids without it."""

import math

import pytest
import torch

from floater import PositionError, Positions, build
from floater.flow import sinusoid

SIZES = {"dim": 64, "heads": 2, "layers": 1, "max_length": 16}
LEFT = Positions.from_mask(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]))


def model(training=True, **options):
    return build("cape", **SIZES, **options).train(training)


def centred(built, positions, batch=1):
    """The positions t' that were encoded, read off the slowest wave: its period is far above them."""
    length = positions.query.shape[1]
    added = built.embed(torch.zeros(batch, length, 64, dtype=torch.double), built.prepare(positions))
    slowest = torch.atan2(added[..., -2], added[..., -1]) * 10000 ** (62 / 64)
    torch.testing.assert_close(added, sinusoid(slowest, 64))
    return slowest


def test_evaluation_takes_the_mean_of_the_tokens_away_and_draws_nothing():
    actual = centred(model(training=False), LEFT, batch=2)
    torch.testing.assert_close(actual[0, 2:], torch.tensor([-1.0, 0, 1]).double())
    torch.testing.assert_close(actual[1], torch.tensor([-2.0, -1, 0, 1, 2]).double())


def test_without_augmentation_and_mean_it_is_the_sinusoid():
    built = model(max_shift=0, max_local=0, max_scale=1, normalize=False)
    times = torch.tensor([[0.0, 0.5, 8000.25]], dtype=torch.double)
    actual = built.embed(torch.zeros(1, 3, 64, dtype=torch.double), built.prepare(Positions.times(times)))
    torch.testing.assert_close(actual, build("sinusoidal", **SIZES).prepare(Positions.times(times)))


def test_one_shift_and_one_scale_for_each_sequence():
    torch.manual_seed(0)
    actual = centred(model(max_local=0, max_scale=2.0), Positions.arange(5), batch=500)
    scale = actual.diff(dim=1)
    torch.testing.assert_close(scale, scale[:, :1].expand(-1, 4))
    torch.testing.assert_close(
        scale.log().aminmax().min.abs(), torch.tensor(math.log(2)).double(), rtol=0.02, atol=0
    )
    shift = actual[:, 2] / scale[:, 0]  # the token in the middle stands at 0
    assert shift.abs().max() <= 5
    assert shift.min() < -4.9
    assert shift.max() > 4.9
    assert len(shift.unique()) == len(scale[:, 0].unique()) == 500
    assert abs(scale[:, 0].log().mean()) < 0.1  # as often wider as narrower


def test_local_shifts_differ_from_token_to_token_and_keep_the_order():
    torch.manual_seed(0)
    actual = centred(model(max_shift=0, max_scale=1), Positions.arange(5), batch=500)
    local = actual - torch.arange(-2, 3)
    assert 0.49 < local.abs().max() <= 0.5 + 1e-9
    assert len(local.unique()) == 2500
    assert bool((actual.diff(dim=1) > 0).all())


def test_the_mean_needs_the_whole_sequence():
    with pytest.raises(PositionError, match=r"normalize=True.* decode without a cache"):
        model().prepare(Positions.arange(1, offset=3))
    assert model(normalize=False).prepare(Positions.arange(1, offset=3)).tolist() == [[3]]
    assert model(site="decoder").prepare(Positions.arange(1, offset=3)).tolist() == [[3]]
