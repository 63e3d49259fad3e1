import math
import warnings

import pytest
import torch
from torch import nn

from floater.flow import FlowSensitive, SolverState, solve, solve_dense
from floater.flow.collocation.error_control import condition_number


class Growth(nn.Module):
    """dp/dt = rate p: a change grows with p itself."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, t, p):
        return self.rate * p


class Pole(nn.Module):
    """dp/dt = p^2: p = p0 / (1 - p0 t), a relative change of whose start grows 1 / (1 - p0 t) times."""

    def forward(self, t, p):
        return p * p


class Lorenz(nn.Module):
    """Neighbours part some e^0.9 times in a unit of time (Lorenz 1963)."""

    def forward(self, t, p):
        x, y, z = p.unbind(1)
        return torch.stack((10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z), dim=1)


def of(field, start, end):
    start = torch.tensor([start], dtype=torch.float64)
    return condition_number(field, start, solve_dense(field, start, end, rtol=1e-9, atol=1e-9))


def test_the_condition_number_of_linear_flows():
    # relative to p, which grows as the change does
    assert of(Growth(1.0), [3.0, 4.0], 4.0) == pytest.approx(1.0, rel=1e-3)
    # below 1 the measure is absolute: |p(0)| = 1e-3 grows e^6 times
    assert of(Growth(1.0), [1e-3, 0.0], 6.0) == pytest.approx(1e-3 * math.exp(6), rel=1e-3)
    assert of(Growth(-1.0), [1.0, 0.0], 5.0) == pytest.approx(1.0, rel=1e-3)


def test_the_condition_number_near_a_pole():
    assert of(Pole(), [1.0], 0.95) == pytest.approx(20, rel=1e-2)


@pytest.mark.slow
def test_a_chaotic_flow_is_called_sensitive_when_it_is_planned_for_training():
    start, times = torch.ones(1, 3), torch.linspace(0, 20, 50)
    field = Lorenz()
    state = SolverState()
    with pytest.warns(FlowSensitive, match=r"grows about .* times up to t = 20"):
        solve(field, start, times, method="collocation", state=state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(field, start, times, method="collocation", state=state)  # on the mesh that was selected
        with torch.no_grad():
            solve(Lorenz(), start, times, method="collocation")
        solve(Lorenz(), start, times / 20, method="collocation")
