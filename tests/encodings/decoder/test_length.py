"""Length-aware positions against equations 32 and 33 of the survey, component by component."""

import math

import pytest
import torch

from floater import PositionError, Positions, build

SIZES = {"dim": 6, "heads": 2, "layers": 1, "max_length": 16}
LENGTHS = torch.tensor([1, 9])


def located(slots, lengths=LENGTHS):
    slots = torch.tensor(slots)
    return Positions(slots, slots, target_length=lengths)


def difference(t, length):
    return [
        math.sin(10000 ** (-j / 6) * (length - t))
        if j % 2 == 0
        else math.cos(10000 ** (-(j - 1) / 6) * (length - t))
        for j in range(6)
    ]


def ratio(t, length):
    return [
        math.sin(length ** (-j / 6) * t) if j % 2 == 0 else math.cos(length ** (-(j - 1) / 6) * t)
        for j in range(6)
    ]


def added(model, positions, batch):
    x = torch.zeros(batch, positions.query.shape[1], 6, dtype=torch.double)
    return model.embed(x, model.prepare(positions))


CASES = [
    ("ldpe", {}, difference),
    ("lrpe", {}, ratio),
    ("noisy_length", {}, difference),
    ("noisy_length", {"kind": "ratio"}, ratio),
]


@pytest.mark.parametrize(("name", "options", "formula"), CASES)
@pytest.mark.parametrize("slots", [[[0, 1, 7, 12]], [[0.0, 0.5, 2.25, 8000.5], [1.0, 2.0, 3.0, 4.0]]])
def test_evaluation_is_the_equation(name, options, formula, slots):
    positions = located(slots)
    rows = slots * (2 // len(slots))
    expected = [[formula(t, n) for t in row] for row, n in zip(rows, LENGTHS.tolist(), strict=True)]
    actual = added(build(name, **SIZES, **options).eval(), positions, 2)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.double), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "options", "formula"), CASES[2:])
def test_training_takes_lengths_that_are_wrong_by_up_to_the_window(name, options, formula):
    torch.manual_seed(0)
    model = build(name, **SIZES, **options, window=3)
    actual = added(model, located([[0, 4]], torch.tensor([5])), 400)
    near = torch.tensor([[formula(t, length) for t in (0, 4)] for length in range(2, 9)], dtype=torch.double)
    distance = (actual[:, None] - near[None]).abs().amax((2, 3))
    assert distance.amin(1).max() < 1e-6  # one length for all tokens of a text
    counts = distance.argmin(1).bincount(minlength=7)
    assert counts.min() > 30  # about 57 of 400 each
    short = added(model, located([[0, 4]], torch.tensor([1])), 100)
    assert bool(short.isfinite().all())


@pytest.mark.parametrize("name", ["ldpe", "lrpe", "noisy_length"])
def test_without_a_target_length_they_refuse_or_are_sinusoids(name):
    message = "no target_length in the positions"
    with pytest.raises(PositionError, match=message):
        build(name, **SIZES).prepare(Positions.arange(3))
    with pytest.raises(PositionError, match=message):
        build(name, **SIZES, plain=True, site="decoder").prepare(Positions.arange(3))
    plain, x = build(name, **SIZES, plain=True), torch.zeros(1, 3, 6)
    sinusoidal = build("sinusoidal", **SIZES)
    expected = sinusoidal.embed(x, sinusoidal.prepare(Positions.arange(3)))
    assert torch.equal(plain.embed(x, plain.prepare(Positions.arange(3))), expected)
