"""Stiff and explosive fields: solved to the tolerance, or refused by an error that names what they are."""

import copy
import csv
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from floater.flow import FlowDiverged, FlowEncoder, FlowStiff, SolverState, solve, solve_dense
from floater.flow.collocation import newton

TIMES = torch.tensor([1e-3, 0.02, 1.0, 3.0], dtype=torch.float64)


class Chase(torch.nn.Module):
    """dp/dt = -rate (p - cos t), each row with the mean of all rows pulled along by `mixed`."""

    smooth = True

    def __init__(self, rate, mixed=0.0):
        super().__init__()
        self.rate, self.mixed = torch.nn.Parameter(torch.tensor(float(rate), dtype=torch.float64)), mixed

    def forward(self, t, p):
        return -self.rate.to(p) * (p - torch.cos(t) + self.mixed * p.mean(0, keepdim=True))


def chased(rate, start, t):
    """The solution of one row, dp/dt = -rate (p - cos t)."""

    def slow(t):
        return (rate**2 * torch.cos(t) + rate * torch.sin(t)) / (1 + rate**2)

    return slow(t) + (start - slow(torch.zeros_like(t))) * torch.exp(-rate * t)


@pytest.mark.parametrize("rate", [1e3, 1e4, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stiff_field_has_its_values_and_gradients(rate, dtype):
    """Against the closed form; explicit methods would take 3 million steps at a rate of 10^6."""
    field, weight = Chase(rate).to(dtype), torch.tensor([3.0, -2.0, 1.0, 2.0], dtype=torch.float64)
    start = torch.tensor([[2.0], [-1.0]], dtype=dtype, requires_grad=True)
    exact_rate = torch.tensor(rate, dtype=torch.float64, requires_grad=True)
    exact_start = start.detach().double().requires_grad_()
    p, exact = solve(field, start, TIMES), chased(exact_rate, exact_start.view(1, 2), TIMES[:, None])
    torch.testing.assert_close(p[..., 0].double(), exact, rtol=1e-5, atol=1e-5)
    ours = torch.autograd.grad((p[..., 0] * weight[:, None]).sum(), [field.rate, start])
    theirs = torch.autograd.grad((exact * weight[:, None]).sum(), [exact_rate, exact_start])
    for mine, other, least in zip(ours, theirs, (1e-5 / rate, 1e-5), strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=least)


def test_rows_that_depend_on_each_other_have_exact_gradients():
    """The Jacobians of Newton's method suppose independent rows; only its speed depends on that."""
    field = Chase(300.0, mixed=0.3)
    start = torch.tensor([[2.0], [-1.0]], dtype=torch.float64, requires_grad=True)
    state = SolverState()
    p = solve(field, start, TIMES, state=state)
    assert state.plan.implicit
    # The mean of the rows chases at 1.3 times the rate a target that is less by 1.3; differences only decay.
    rate = torch.tensor(300.0, dtype=torch.float64, requires_grad=True)
    exact_start = start.detach().clone().requires_grad_()
    mean = chased(1.3 * rate, 1.3 * exact_start.mean(), TIMES) / 1.3
    apart = (exact_start - exact_start.mean()).view(1, 2) * torch.exp(-rate * TIMES[:, None])
    exact = mean[:, None] + apart
    torch.testing.assert_close(p[..., 0], exact, rtol=1e-5, atol=1e-5)
    ours = torch.autograd.grad(p.square().sum(), [field.rate, start])
    theirs = torch.autograd.grad(exact.square().sum(), [rate, exact_start])
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-7)


class VanDerPol(torch.nn.Module):
    smooth = True
    rate = 30.0

    def forward(self, t, p):
        x, y = p.unbind(1)
        return torch.stack((y, self.rate * (1 - x**2) * y - x), 1)


class Robertson(torch.nn.Module):
    """Three reactions whose rates differ by nine orders of magnitude (Robertson 1966)."""

    smooth = True

    def forward(self, t, p):
        a, b, c = p.unbind(1)
        slow, fast, faster = 0.04 * a, 1e4 * b * c, 3e7 * b**2
        return torch.stack((fast - slow, slow - fast - faster, faster), 1)


STORED = Path(__file__).parents[2] / "docs" / "design" / "collocation" / "stiff.csv"


@pytest.mark.parametrize(
    ("problem", "field", "start", "end"),
    [
        ("p' = -10^4 (p - cos t)", Chase(1e4), [1.5], 10.0),
        ("p' = -10^8 (p - cos t)", Chase(1e8), [1.5], 10.0),
        ("Robertson", Robertson(), [1.0, 0.0, 0.0], 4e5),
    ],
)
@torch.no_grad()
def test_a_stiff_problem_takes_as_many_intervals_as_the_page_says(problem, field, start, end):
    """Rounding may move an end of an interval."""
    with STORED.open(encoding="utf-8", newline="") as file:
        (row,) = (row for row in csv.DictReader(file) if row["problem, tolerance 1e-6, one row"] == problem)
    solution = solve_dense(field, torch.tensor([start]), end)
    assert len(solution.edges) - 1 == pytest.approx(int(row["intervals"]), rel=0.1)


@pytest.mark.parametrize(
    ("field", "start", "end"), [(VanDerPol(), [2.0, 0.0], 50.0), (Robertson(), [1.0, 0.0, 0.0], 4e4)]
)
@torch.no_grad()
def test_known_stiff_problems_agree_with_radau(field, start, end):
    times, state = torch.linspace(0.1, 1, 5, dtype=torch.float64) * end, SolverState()

    def velocity(t, p):
        return field(torch.tensor(t), torch.from_numpy(p)[None])[0].numpy()

    p = solve(field, torch.tensor([start], dtype=torch.float64), times, state=state)[:, 0].numpy()
    exact = solve_ivp(velocity, (0, end), start, "Radau", t_eval=times, rtol=1e-9, atol=1e-12).y.T
    assert state.plan.implicit
    assert np.abs(p - exact).max() < 1e-5
    if len(start) == 3:
        np.testing.assert_allclose(p.sum(1), 1, rtol=1e-10)  # nothing is lost


def test_a_kept_plan_stays_implicit_and_can_be_saved():
    resuming = pytest.importorskip("floater.lab.training.resuming", reason="needs the extra lab")
    field, start, state = Chase(1e4), torch.ones(1, 2, dtype=torch.float64), SolverState()
    first = solve(field, start, TIMES, state=state)
    edges = state.plan.edges
    saved = [{"problem": state.problem, "plan": asdict(state.plan)}]
    (restored,) = resuming.solver_states(Path("state"), saved, 1)
    for again in (state, restored):
        assert torch.equal(solve(field, start, TIMES, state=again), first)
        assert again.plan.edges == edges
        assert again.plan.implicit
    del saved[0]["plan"]["implicit"]  # of a version without Newton's method
    assert not resuming.solver_states(Path("state"), saved, 1)[0].plan.implicit


def test_an_ordinary_field_is_solved_by_fixed_point_iteration():
    state = SolverState()
    solve(Chase(5.0), torch.ones(1, 2), TIMES, state=state)
    assert not state.plan.implicit


def test_a_field_becomes_stiff_on_a_kept_plan():
    field, start, state = Chase(5.0), torch.full((1, 1), 2.0, dtype=torch.float64), SolverState()
    solve(field, start, TIMES, state=state)
    field.rate.data.fill_(1e5)
    p = solve(field, start, TIMES, state=state)
    torch.testing.assert_close(p[:, 0, 0], chased(field.rate, start[0, 0], TIMES), rtol=1e-5, atol=1e-5)


def test_an_encoder_of_a_stiff_field_bakes():
    encoder = FlowEncoder(Chase(1e4), 2, blocks=[0], names=["q"], delta=0.5).eval()
    encoder.bake(5)
    rate, at = torch.tensor(1e4, dtype=torch.float64), 0.5 * torch.arange(5, dtype=torch.float64)
    vectors = encoder(torch.arange(5)[None]).at(0, "q")[0].detach().double()
    expected = chased(rate, encoder.start.detach().double().view(1, 2), at[:, None])
    torch.testing.assert_close(vectors, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", ["collocation", "dopri5", "bosh3", "rk4", "midpoint", "euler"])
def test_a_method_that_cannot_solve_a_stiff_field_names_stiffness(method, monkeypatch):
    monkeypatch.setattr(newton, "_LARGEST", 0)  # too many components for Newton's method
    with pytest.raises(
        FlowStiff, match=r"is stiff at t = \d.*decay at a rate of 1e\+07.*collocation"
    ) as caught:
        solve(Chase(1e7), torch.full((1, 1), 2.0, dtype=torch.float64), TIMES, method=method)
    assert "\n" not in str(caught.value)
    assert caught.value.rate == pytest.approx(1e7)
    assert 0 <= caught.value.time < 3


@pytest.mark.parametrize("method", ["collocation", "dopri5", "dopri8", "rk4", "midpoint", "euler"])
@pytest.mark.parametrize("learns", [True, False])
def test_an_explosion_is_named_with_its_time(method, learns):
    """dp/dt = p^2 is infinite at t = 1, long before the wanted time."""

    class Square(torch.nn.Module):
        smooth = True

        def forward(self, t, p):
            return p**2

    start = torch.ones(1, 2, dtype=torch.float64, requires_grad=learns)
    with pytest.raises(FlowDiverged, match=r"diverged at t = (0\.99|1(\.|\b))") as caught:
        solve(Square(), start, torch.tensor([0.5, 40.0]), method=method, step=None)
    # An explicit method with a fixed step passes the pole by some steps of 0.02.
    assert caught.value.time == pytest.approx(1.0, abs=0.4 if method == "euler" else 0.15)


def test_a_field_that_oscillates_too_fast_is_not_called_stiff():
    class Circle(torch.nn.Module):
        smooth = True

        def forward(self, t, p):
            return 1e6 * torch.stack((p[:, 1], -p[:, 0]), 1)

    for method in ("collocation", "dopri5"):
        with pytest.raises(FlowDiverged, match="are not enough"):
            solve(Circle(), torch.ones(1, 2), torch.tensor([10.0]), method=method)


def test_the_adjoint_ends_too(monkeypatch):
    """The adjoint of a stiff field grows without bound backwards in time."""
    monkeypatch.setattr("floater.flow.runge_kutta.MAX_EVALUATIONS", 2000)
    start = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    with pytest.raises((FlowStiff, FlowDiverged)):
        solve(Chase(200.0), start, torch.tensor([1.0]), method="dopri5", gradient="adjoint").sum().backward()


def test_a_field_without_derivatives_is_refused_in_time():
    class Detached(Chase):
        def forward(self, t, p):
            return super().forward(t, p.detach()).detach()

    with pytest.raises(FlowDiverged, match="10000 intervals are not enough"):
        solve_dense(Detached(1e6), torch.ones(1, 1, dtype=torch.float64), 3.0)


def test_a_solve_does_not_depend_on_copies_of_a_stiff_field():
    field, start = Chase(1e4), torch.ones(2, 3)
    with torch.no_grad():
        assert torch.equal(solve(field, start, TIMES), solve(copy.deepcopy(field), start, TIMES))


def test_unstable_steps_are_no_large_vectors():
    """A step beyond stability multiplies by 27,000 without an overflow in float64."""
    with pytest.raises(FlowStiff, match=r"steps of 0\.02 are too long for 'rk4'"):
        solve(Chase(1e3), torch.full((1, 1), 2.0, dtype=torch.float64), TIMES[2:3], method="rk4")
    growing = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)

    class Growth(torch.nn.Module):
        def forward(self, t, p):
            return growing(p)

    growing.weight.data.fill_(50.0)
    p = solve(Growth(), torch.ones(1, 1, dtype=torch.float64), torch.tensor([1.0]), method="rk4", step=1e-3)
    assert float(p) == pytest.approx(math.exp(50), rel=1e-3)
