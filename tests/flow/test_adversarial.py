"""Pulses too narrow for a solver's steps are integrated, refused or warned of; never missed in silence."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floater.flow import MLPField, SumField, ZeroField, solve
from floater.flow.units import units_of

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # what tests and measurements share
from adversarial import KINDS, campaign


@settings(max_examples=2)
@given(seed=st.integers(0, 10**6))
def test_no_adversarial_field_is_silently_wrong(seed):
    ends = campaign(len(KINDS), seed)
    assert ends["silent"] == 0, (seed, ends)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 250))  # apart, for several processes
def test_none_of_a_thousand_adversarial_fields_is_silently_wrong(first):
    ends = campaign(250, first)
    assert ends["silent"] == 0, ends
    assert ends["within"] > 0.7 * ends.total()


@pytest.mark.parametrize("method", ["auto", "collocation"])
@pytest.mark.parametrize("at", [1.0, 3.14159, 7.5])
@pytest.mark.parametrize("width", [0.1, 1e-2, 1e-3])
def test_a_pulse_of_three_kinks_is_not_stepped_over(method, at, width):
    """A triangle of height 30 between `at` and `at + 2 width`, whose area is 30 x width."""
    field = MLPField(1, 3, "relu")
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.zero_()
        field.inner.weight[:, 1] = 1.0
        field.inner.bias.copy_(-at - width * torch.arange(3.0))
        field.outer.weight[:, :3] = 30 / width * torch.tensor([1.0, -2.0, 1.0])
    p = solve(
        field, torch.zeros(1, 1), torch.tensor([at + 2 * width + 1], dtype=torch.float64), method=method
    )
    kinks = -field.inner.bias.detach().double()
    slopes = field.outer.weight.detach()[0, :3].double()
    exact = (slopes * (at + 2 * width + 1 - kinks).square() / 2).sum()
    assert abs(float(p.detach()) - float(exact)) < 1e-5 * max(1, abs(float(exact)))


def test_a_solver_that_looks_at_too_few_times_is_found_out():
    def careless(field, start, times):
        return solve(field, start, times, method="rk4", step=0.1)

    assert campaign(8, solver=careless)["silent"] > 0


def test_units_of_a_sum_are_those_of_its_parts_and_other_fields_have_none():
    field = SumField(MLPField(2, 3), ZeroField())
    (layer,) = units_of(field)
    t, p = torch.tensor(0.5), torch.randn(4, 2)
    s = torch.tanh(layer.argument(t, p))
    jump = torch.tensor([0.0, 1.0, 0.0])
    moved = field.a.outer(torch.cat((s + jump, torch.full((4, 1), 0.5)), 1)) - field(t, p)
    torch.testing.assert_close(moved.norm(dim=1), layer.columns[1].expand(4))
