"""Frequencies whose period the training span does not cover: kept, cut, rounded."""

import math

import pytest
import torch

from floater import Positions, build
from floater.encodings import AttentionContext
from floater.encodings.relative.waves import covered, frequencies
from floater.flow import BoundedField

SPAN = 40
SIZES = {"dim": 32, "heads": 2, "layers": 2, "max_length": SPAN}  # heads of 16
PERIODS = 2 * math.pi * 10000 ** (torch.arange(0, 16, 2, dtype=torch.double) / 16)


def test_the_cut_is_where_a_period_fits_the_span_once():
    at = covered(frequencies(16), SPAN, "cut")
    assert (at == 0).tolist() == [period > SPAN for period in PERIODS.tolist()]
    assert torch.equal(at[at > 0], frequencies(16)[at > 0])
    # times of 0.1: the same periods in tokens
    assert torch.equal(covered(10 * frequencies(16), SPAN, "cut", step=0.1), 10 * at)
    assert torch.equal(covered(frequencies(16), SPAN, "keep"), frequencies(16))


def test_rounded_frequencies_are_those_of_resonance():
    actual = covered(frequencies(128), SPAN, "round")
    for ours, plain in zip(actual.tolist(), frequencies(128).tolist(), strict=True):
        assert ours == pytest.approx(2 * math.pi / round(2 * math.pi / plain), rel=1e-12)
    at = covered(torch.tensor([0.0, 60.0], dtype=torch.double), SPAN, "round")
    assert at.tolist() == [0.0, math.pi]  # a period below a token is one of two


def turned(start, length, **options):
    """Keys of ones at positions from `start` on, (length, head_dim)."""
    model = build("rotary", **SIZES, **options)
    x = torch.ones(1, length, 2, 16, dtype=torch.double)
    at = torch.arange(start, start + length)[None]
    return model.qkv(x, x, x, AttentionContext(model.prepare(Positions(at, at)), 0))[1][0, :, 0]


def vectors(start, length, **options):
    """Sinusoids at positions from `start` on, (length, dim)."""
    model = build("sinusoidal", **SIZES, **options)
    at = torch.arange(start, start + length, dtype=torch.double)[None]
    return model.embed(torch.zeros(1, length, 32, dtype=torch.double), model.prepare(Positions(at, at)))[0]


@pytest.mark.parametrize(("values", "width"), [(turned, 16), (vectors, 32)])
def test_rounded_components_repeat_after_their_period(values, width):
    for pair in range(width // 2):
        period = round(2 * math.pi * 10000 ** (2 * pair / width))
        part = slice(2 * pair, 2 * pair + 2)
        for away in (1, 7):
            actual = values(away * period, 30, uncovered="round")[:, part]
            near = values(0, 30, uncovered="round")[:, part]
            torch.testing.assert_close(actual, near, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("values", "width"), [(turned, 16), (vectors, 32)])
def test_cut_components_are_the_same_everywhere(values, width):
    far, kept = values(0, 1000, uncovered="cut"), values(0, 1000)
    slow = 2 * math.pi * 10000 ** (torch.arange(0, width, 2) / width) > SPAN
    pairs = far.unflatten(-1, (-1, 2))
    assert bool((pairs[:, slow] == pairs[:1, slow]).all())
    torch.testing.assert_close(pairs[:, ~slow], kept.unflatten(-1, (-1, 2))[:, ~slow])
    assert 0 < int(slow.sum()) < width // 2


@pytest.mark.parametrize("uncovered", ["cut", "round"])
def test_scaling_and_coverage_go_together(uncovered):
    """Cutting goes by the periods of training, rounding by those that remain."""
    scaling = {"rope_type": "linear", "factor": 4.0}
    at, _ = build("rotary", **SIZES, scaling=scaling, uncovered=uncovered).frequencies(torch.device("cpu"))
    cut = torch.where(PERIODS > SPAN, 0, frequencies(16) / 4)
    rounded = 2 * math.pi / (4 * PERIODS).round()
    torch.testing.assert_close(at, cut if uncovered == "cut" else rounded)


@pytest.mark.parametrize(("delta", "kept"), [(0.1, 0), (1.0, 3), (4.0, 5)])
def test_clocks_of_the_bounded_field_are_cut(delta, kept):
    """Their periods are 2 pi 2^k / delta tokens: at delta 1 those of 6.3, 12.6 and 25.1 fit into 40."""
    torch.manual_seed(0)
    model = build("floater", **SIZES, field="bounded", delta=delta, uncovered="cut")
    field = model.flows[0].field
    assert isinstance(field, BoundedField)
    p, out = torch.randn(1, 32), []
    clocks = field.inner.weight[:, 32:]
    for k in range(8):
        with torch.no_grad():
            clocks.zero_()
            clocks[:, [k, k + 8]] = 1.0  # sine and cosine of clock k alone
        far = torch.tensor([0.0, 1.7, 900.3], dtype=torch.double)
        velocity = torch.stack([field(t, p) for t in far])
        out.append(not torch.equal(velocity[0], velocity[1]))
    assert out == [k < kept for k in range(8)]


def test_the_sinusoids_that_floater_keeps_are_those_of_the_option():
    for uncovered in ("keep", "cut", "round"):
        floater = build("floater", **SIZES, uncovered=uncovered, start="zero")
        plain = build("sinusoidal", **SIZES, uncovered=uncovered)
        x, at = torch.zeros(1, 90, 32), Positions.arange(90)
        torch.testing.assert_close(floater.embed(x, floater.prepare(at)), plain.embed(x, plain.prepare(at)))
        added = build("floater", **SIZES, uncovered=uncovered, injection="add", start="sinusoidal")
        torch.testing.assert_close(
            added.embed(x, added.prepare(at)), plain.embed(x, plain.prepare(at)), rtol=0, atol=1e-3
        )
