"""Densities of gaps: that they are densities, and agree with scipy."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from floater.lab.tasks.corpora.events import EventSequence
from floater.lab.tasks.events import Columns, Data, EventsSettings, configured
from floater.transformer.time_distributions import NARROWEST, LogNormalMixture, PiecewiseHazard

EDGES = [0.0, 0.2, 0.7, 3.0]


def head(kind, rows=1):
    torch.manual_seed(0)
    if kind == "lognormal":
        return LogNormalMixture(torch.randn(rows, 9), mean=0.3, std=1.7)
    return PiecewiseHazard(torch.randn(rows, 4), EDGES)


@pytest.mark.parametrize("kind", ["lognormal", "hazard"])
def test_the_density_is_the_derivative_of_a_distribution_that_ends_at_one(kind):
    gaps = head(kind)

    def density(gap):
        return float(gaps.log_prob(torch.tensor([gap])).exp())

    for a, b in ((0.0, 0.2), (0.2, 0.7), (0.7, 3.0), (3.0, 20.0)):
        mass = integrate.quad(density, max(a, 1e-12), b, limit=200)[0]
        between = float(gaps.cdf(torch.tensor([b]))) - (float(gaps.cdf(torch.tensor([a]))) if a else 0.0)
        assert mass == pytest.approx(between, abs=1e-4)  # float32 and a quadrature from near 0
    assert float(gaps.cdf(torch.tensor([1e9]))) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("kind", ["lognormal", "hazard"])
def test_half_of_the_mass_is_below_the_median(kind):
    gaps = head(kind, rows=64)
    torch.testing.assert_close(gaps.cdf(gaps.median()), torch.full((64,), 0.5), rtol=0, atol=1e-5)


def test_one_component_is_the_log_normal_of_scipy():
    raw = torch.tensor([[0.4, -0.8, 0.2]])
    width = math.log1p(math.exp(0.2)) + NARROWEST
    theirs = stats.lognorm(s=1.7 * width, scale=math.exp(0.3 + 1.7 * -0.8))
    ours = LogNormalMixture(raw, mean=0.3, std=1.7)
    for gap in (0.02, 0.5, 40.0):
        at = torch.tensor([gap])
        assert float(ours.log_prob(at)) == pytest.approx(theirs.logpdf(gap), rel=1e-4)
        assert float(ours.cdf(at)) == pytest.approx(theirs.cdf(gap), abs=1e-6)
    assert float(ours.median()) == pytest.approx(theirs.median(), rel=1e-4)


def test_equal_hazards_are_the_exponential_distribution():
    rate = 1.3
    widths = [*np.diff(EDGES), np.diff(EDGES)[-1]]  # of the last interval, that of the one before
    raw = torch.tensor([[math.log(math.expm1(rate * w)) for w in widths]])
    ours, theirs = PiecewiseHazard(raw, EDGES), stats.expon(scale=1 / rate)
    for gap in (1e-3, 0.2, 0.5, 2.9, 7.0):
        assert float(ours.log_prob(torch.tensor([gap]))) == pytest.approx(theirs.logpdf(gap), abs=1e-5)
        assert float(ours.cdf(torch.tensor([gap]))) == pytest.approx(theirs.cdf(gap), rel=1e-5)
    assert float(ours.median()) == pytest.approx(theirs.median(), rel=1e-5)


@pytest.mark.parametrize("gap", [1e-9, 1e9])
@pytest.mark.parametrize("kind", ["lognormal", "hazard"])
def test_far_gaps_have_finite_gradients(kind, gap):
    torch.manual_seed(0)
    raw = torch.randn(1, 9 if kind == "lognormal" else 4, requires_grad=True)
    head = LogNormalMixture(raw, 0.3, 1.7) if kind == "lognormal" else PiecewiseHazard(raw, EDGES)
    head.log_prob(torch.tensor([gap])).sum().backward()
    assert bool(raw.grad.isfinite().all())
    assert bool(raw.grad.any())


def test_a_clock_that_ticks_evenly_has_a_finite_likelihood():
    none = np.zeros((50, 0))
    sequence = EventSequence("a", 7.0 * np.arange(50), ("x",) * 50, none, none > 0)
    settings = EventsSettings(run="run", data=Data(train="events.csv", columns=Columns()))
    mean, std = configured(settings, [sequence]).log_gap
    head = LogNormalMixture(torch.zeros(2, 6), mean, std)
    assert bool((head.log_prob(torch.tensor([7.0, 7.001])) > -10).all())
    assert float(head.log_prob(torch.tensor([14.0, 14.0]))[0]) > -1e4
