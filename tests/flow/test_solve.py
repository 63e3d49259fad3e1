"""`solve` against closed forms, matrix exponentials, scipy and itself."""

import copy
import math

import numpy as np
import pytest
import torch
from flow_cases import field_and_start, gradients, scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from torch import nn

from floater.flow import (
    METHODS,
    FlowDiverged,
    MLPField,
    SecondDerivativeError,
    SinusoidField,
    SumField,
    ZeroField,
    flow_error,
    gradient_error,
    init_small_,
    reference_solve,
    sinusoid,
    solve,
)
from floater.flow.checks import ADAPTIVE_METHODS, FIXED_STEP_METHODS
from floater.flow.solve import GRADIENTS, check_options

ORDERS = {"euler": 1, "midpoint": 2, "heun2": 2, "heun3": 3, "rk4": 4}


class Linear(nn.Module):
    """dp/dt = p A: a field somebody else might write."""

    def __init__(self, matrix):
        super().__init__()
        self.matrix = nn.Parameter(matrix)

    def forward(self, t, p):
        return p @ self.matrix


class Square(nn.Module):
    """dp/dt = p^2, which goes to infinity at t = 1 / p(0)."""

    def forward(self, t, p):
        return p**2


PAIRS = [
    (method, gradient)
    for method in METHODS
    for gradient in GRADIENTS
    if gradient == "discrete" or method != "collocation"
]


@pytest.mark.parametrize(("method", "gradient"), PAIRS)
def test_under_the_zero_field_every_vector_is_the_start(method, gradient):
    start = torch.randn(2, 4, requires_grad=True)
    p = solve(ZeroField(), start, torch.tensor([0.0, 0.3, 5.0]), method=method, gradient=gradient)
    assert torch.equal(p, start.expand(3, 2, 4))
    p.sum().backward()
    torch.testing.assert_close(start.grad, torch.full((2, 4), 3.0))


@pytest.mark.parametrize("method", ["dopri5", "dopri8", "collocation"])
def test_linear_field_is_the_matrix_exponential(method):
    torch.manual_seed(0)
    matrix = torch.randn(5, 5, dtype=torch.float64)
    matrix = matrix - matrix.T - 0.1 * torch.eye(5)
    start = torch.randn(4, 5, dtype=torch.float64)
    times = torch.tensor([0.05, 0.7, 0.71, 6.0], dtype=torch.float64)
    p = solve(Linear(matrix), start, times, method=method, rtol=1e-9, atol=1e-9)
    exact = torch.stack([start @ torch.matrix_exp(matrix * t) for t in times])
    assert flow_error(p, exact) < 1e-7  # the tolerance, times what the errors of all steps may add up to


def test_sinusoid_field_gives_equation_6():
    field, positions = SinusoidField(16), torch.arange(128, dtype=torch.float64)
    p = solve(field, field.start().double()[None], positions, rtol=1e-9, atol=1e-9)
    assert flow_error(p[:, 0], sinusoid(positions, 16)) < 1e-6


def test_spacing_of_the_sinusoid_field():
    field, positions = SinusoidField(16, delta=0.1), torch.arange(100, dtype=torch.float64)
    p = solve(field, field.start().double()[None], 0.1 * positions, rtol=1e-9, atol=1e-9)
    assert flow_error(p[:, 0], sinusoid(positions, 16)) < 1e-6


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_against_scipy(activation):
    field, start = field_and_start(activation=activation)
    times = torch.tensor([0.0, 0.1, 0.15, 2.0, 5.0], dtype=torch.float64)

    def right_hand_side(t, flat):
        with torch.no_grad():
            return field(torch.tensor(t), torch.from_numpy(flat).view(3, 6)).flatten().numpy()

    oracle = solve_ivp(
        right_hand_side, (0, 5), start.flatten().numpy(), "DOP853", times.numpy(), rtol=1e-12, atol=1e-12
    )
    exact = torch.from_numpy(np.ascontiguousarray(oracle.y.T)).view(5, 3, 6)
    assert flow_error(solve(field, start, times, rtol=1e-9, atol=1e-9), exact) < 1e-7
    assert flow_error(solve(field.float(), start.float(), times), exact) < 1e-4  # default tolerances
    assert flow_error(reference_solve(field, start, times), exact) < 1e-6  # float32 weights by now


@pytest.mark.parametrize("method", FIXED_STEP_METHODS)
def test_halving_the_step_shows_the_order_at_times_off_the_grid(method):
    field, start = field_and_start()
    times = torch.tensor([0.37, 1.03, 2.9], dtype=torch.float64)
    exact = reference_solve(field, start, times)
    coarse, fine = (flow_error(solve(field, start, times, method=method, step=s), exact) for s in (0.1, 0.05))
    # 0.37, 0.66 and 1.87 are not multiples of the steps, so the steps taken are not exactly halved.
    assert math.log2(coarse / fine) == pytest.approx(ORDERS[method], abs=0.4)


def test_rk4_is_accurate_between_multiples_of_its_step():
    field, start = field_and_start()
    times = torch.tensor([0.0, 0.21, 0.3, 0.77, 1.9], dtype=torch.float64)
    p = solve(field, start, times, method="rk4", step=0.5)
    assert flow_error(p, reference_solve(field, start, times)) < 1e-3  # linear interpolation: 1e-2 and more


@pytest.mark.parametrize("method", ADAPTIVE_METHODS)
def test_errors_follow_the_tolerance(method):
    field, start = field_and_start()
    times = torch.linspace(0, 12, 7, dtype=torch.float64)
    exact = reference_solve(field, start, times)
    loose, tight = (
        flow_error(solve(field, start, times, method=method, rtol=tol, atol=tol), exact)
        for tol in (1e-3, 1e-6)
    )
    assert tight < loose / 5  # the loose eighth-order steps are far better than asked for
    assert tight < 1e-3


@settings(max_examples=25)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=12, unique=True))
def test_irregular_times_give_what_a_fresh_solve_to_each_gives(hundredths):
    field, start = field_and_start(dim=4, rows=2)
    times = torch.tensor(sorted(hundredths), dtype=torch.float64) / 100
    together = solve(field, start, times, rtol=1e-8, atol=1e-8)
    for vector, t in zip(together, times, strict=True):
        alone = solve(field, start, t[None], rtol=1e-8, atol=1e-8)[0]
        torch.testing.assert_close(vector, alone, rtol=1e-6, atol=1e-6)


def test_solving_on_from_a_state_is_solving_through_it():
    field, start = field_and_start()
    times = torch.linspace(0, 4, 9, dtype=torch.float64)
    whole = solve(field, start, times, rtol=1e-9, atol=1e-9)
    rest = solve(field, whole[4], times[5:], begin=2.0, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(rest, whole[5:], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("dopri5", {"rtol": 1e-9, "atol": 1e-9}),
        ("dopri8", {"rtol": 1e-9, "atol": 1e-9}),
        ("rk4", {"step": 0.02}),
        ("midpoint", {"step": 0.002}),
    ],
)
def test_adjoint_and_discrete_gradients_agree(method, options):
    field, start = field_and_start()
    times = torch.tensor([0.2, 0.5, 1.7], dtype=torch.float64)
    discrete, adjoint = (
        gradients(field, start, times, method=method, gradient=g, **options) for g in ("discrete", "adjoint")
    )
    assert gradient_error(adjoint, discrete) < 1e-5  # both are off by the discretisation


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_the_adjoint_is_not_differentiated_again(method):
    """Not even where other terms of the loss have second derivatives."""
    field, start = field_and_start()
    start.requires_grad_()
    p = solve(field, start, torch.tensor([0.0, 0.5]), method=method, gradient="adjoint")
    (gradient,) = torch.autograd.grad(p.pow(3).sum() + start.pow(2).sum(), start, create_graph=True)
    with pytest.raises(SecondDerivativeError, match="gradient='adjoint' has no second derivatives"):
        torch.autograd.grad(gradient.sum(), start)


@pytest.mark.parametrize("method", ["dopri5", "rk4", "collocation"])
def test_gradcheck(method):
    field, start = field_and_start(dim=2, rows=2)
    names = [name for name, _ in field.named_parameters()]
    times = torch.tensor([0.3, 0.9], dtype=torch.float64)

    def run(start, times, *parameters):
        class Bound(nn.Module):
            def forward(self, t, p):
                return torch.func.functional_call(field, dict(zip(names, parameters, strict=True)), (t, p))

        return solve(Bound(), start, times, method=method, rtol=1e-9, atol=1e-9)

    inputs = [start, times, *field.parameters()]
    inputs = [x.detach().requires_grad_() for x in inputs]
    # Finite differences move the step sizes of an adaptive method by a part of its tolerance.
    # Collocation counts its iterations for the cotangents that it meets first.
    assert torch.autograd.gradcheck(run, inputs, eps=1e-4, atol=1e-5, rtol=1e-4, nondet_tol=1e-6)


def test_the_gradient_in_a_time_is_the_velocity_there():
    field, start = field_and_start()
    times = torch.tensor([0.4, 1.3], dtype=torch.float64, requires_grad=True)
    p = solve(field, start, times, rtol=1e-9, atol=1e-9)
    (gradient,) = torch.autograd.grad(p[1].sum(), times)
    expected = torch.stack((torch.zeros((), dtype=torch.float64), field(times[1], p[1]).sum())).detach()
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "gradient"),
    [
        ("collocation", "discrete"),
        ("rk4", "discrete"),
        ("rk4", "adjoint"),
        ("dopri5", "discrete"),
        ("dopri5", "adjoint"),
    ],
)
@pytest.mark.parametrize("at", [[0.0, 0.5, 1.0], [0.0], [0.25, 1.0]])
def test_a_wanted_time_moves_its_own_vector_alone(method, gradient, at):
    field, start = field_and_start()
    times = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    p = solve(field, start, times, method=method, gradient=gradient, rtol=1e-9, atol=1e-9)
    for i, t in enumerate(times):
        (actual,) = torch.autograd.grad(p[i].sum(), times, retain_graph=True)
        wanted = torch.zeros_like(actual).index_fill(0, torch.tensor(i), field(t, p[i]).sum().item())
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


def test_the_start_of_a_long_solve_is_the_short_solve():
    torch.manual_seed(0)
    field, start = init_small_(MLPField(16), 51.2), 0.02 * torch.randn(4, 16)
    times = 0.1 * torch.arange(4096)
    with torch.no_grad():
        long, short = solve(field, start, times), solve(field, start, times[:512])
    assert flow_error(long[:512], short) < 1e-6


@pytest.mark.parametrize(
    ("method", "gradient"), [p for p in PAIRS if p[0] in ("auto", "collocation", "dopri5", "dopri8", "rk4")]
)
def test_divergence_is_named_with_its_time(method, gradient):
    start = torch.tensor([[0.1, 0.5]])
    times = torch.linspace(0, 4, 81)
    with pytest.raises(FlowDiverged, match=r"diverged at t = .*smaller initial weights.*tanh") as caught:
        solve(Square(), start, times, method=method, gradient=gradient)
    assert caught.value.time == pytest.approx(2.0, abs=0.15)  # 1 / 0.5; rk4 steps over it before overflow
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "gradient", "method"),
    [
        (MLPField(2), "discrete", "collocation"),
        (MLPField(2), "adjoint", "dopri5"),
        (MLPField(2, activation="relu"), "discrete", "collocation"),
        (SumField(SinusoidField(2), MLPField(2, activation="selu")), "discrete", "collocation"),
        (SumField(MLPField(2, activation="selu"), Linear(torch.eye(2))), "discrete", "dopri5"),
        (Linear(torch.eye(2)), "discrete", "dopri5"),
    ],
)
def test_the_automatic_method_follows_from_what_is_known_of_a_field(field, gradient, method):
    chosen, _ = check_options(field, method="auto", rtol=1e-6, atol=1e-6, step=None, gradient=gradient)
    assert chosen == method


@pytest.mark.parametrize("activation", ["relu", "selu"])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_auto_keeps_the_tolerance_of_fields_with_kinks(activation, scale):
    field, start = field_and_start(seed=2, dtype=torch.float32, activation=activation)
    scaled(field, scale)
    times = 0.1 * torch.arange(1, 31, dtype=torch.float64)
    with torch.no_grad():
        exact = solve(copy.deepcopy(field).double(), start.double(), times, method="rk4", step=2e-3)
    for learns in (True, False):
        with torch.set_grad_enabled(learns):
            p = solve(field, start, times).detach()
        assert flow_error(p, exact) < 1e-5  # ten tolerances


class Silent(MLPField):
    """A field with kinks that does not say so."""

    smooth = None

    def forward(self, t, p):
        s = nn.functional.hardtanh(self.preactivations(t, p))
        return self.outer(torch.cat((s, t.to(p.dtype).expand(len(p), 1)), 1))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_auto_keeps_the_tolerance_of_fields_that_say_nothing(seed):
    torch.manual_seed(seed)
    field, start = Silent(6, 12), torch.randn(3, 6)
    times = 0.25 * torch.arange(1, 41, dtype=torch.float64)
    with torch.no_grad():
        exact = solve(copy.deepcopy(field).double(), start.double(), times, method="rk4", step=2e-3)
        assert flow_error(solve(field, start, times), exact) < 1e-5  # ten tolerances
