"""Collocation against closed forms, float64 references, autograd and its own promises."""

import copy
import warnings

import pytest
import torch
from flow_cases import DIM, encoder, exact, positions, scaled
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from floater.flow import (
    FlowDiverged,
    FlowInaccurate,
    FlowSensitive,
    MLPField,
    SecondDerivativeError,
    SinusoidField,
    SolverState,
    SumField,
    flow_error,
    gradient_error,
    init_small_,
    reference_solve,
    sinusoid,
    solve,
    solve_dense,
)
from floater.flow.collocation import solver
from floater.flow.vector_fields import ScaledField

TIGHT = {"rtol": 1e-12, "atol": 1e-12}


class Wrapped(nn.Module):
    """A field that hides that it is an MLP, and so is solved in p itself."""

    def __init__(self, field):
        super().__init__()
        self.field = field

    def forward(self, t, p):
        return self.field(t, p)


class ReadsItsTime(Wrapped):
    """A field that cannot be evaluated at many times at once."""

    def forward(self, t, p):
        return self.field(t, p) * (1.0 if float(t.detach()) < 100 else 0.0)


FORMS = {"preactivations": nn.Identity, "p": Wrapped, "node by node": ReadsItsTime}


def problem(dim=6, rows=3, length=20, span=4.0, dtype=torch.float64, **kwargs):
    torch.manual_seed(0)
    field = MLPField(dim, **kwargs).to(dtype)
    times = torch.rand(length, dtype=torch.float64).sort().values * span
    return field, torch.randn(rows, dim, dtype=dtype), times


def in_form(form, field):
    return field if form == "preactivations" else FORMS[form](field)


def gradients(field, start, times, solver):
    start, times = start.clone().requires_grad_(), times.clone().requires_grad_()
    p = solver(field, start, times)
    torch.manual_seed(1)
    weight = torch.randn(p.shape, dtype=torch.float64).to(p.dtype)
    return torch.autograd.grad((weight * p).sum(), [start, times, *field.parameters()])


def exact_and_moved(field, start, times, **options):
    """The exact vectors, and those of a start that differs in the last bit of single precision."""
    both = torch.cat((start.double(), start.double() * (1 + 2**-23)))
    with torch.no_grad():
        wide = copy.deepcopy(field).double()
        return solve(wide, both, times.double(), rtol=1e-11, atol=1e-11, **options).chunk(2, 1)


def rk4(step):
    return lambda h, p, t: solve(h, p, t, method="rk4", step=step)


def collocation(**options):
    return lambda h, p, t: solve(h, p, t, method="collocation", **options)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("activation", ["tanh", "silu", "gelu"])
def test_values_and_gradients_are_those_of_a_fine_rk4(activation, form):
    field, start, times = problem(hidden=9, length=6, span=2.0, activation=activation)
    field = in_form(form, field)
    fine = rk4(0.005)
    assert flow_error(collocation(**TIGHT)(field, start, times), fine(field, start, times)) < 1e-10
    ours, theirs = (gradients(field, start, times, s) for s in (collocation(**TIGHT), fine))
    assert gradient_error(ours, theirs) < 1e-9  # the error of rk4: 0.005^4 = 6e-10


@pytest.mark.parametrize("form", FORMS)
def test_gradients_in_float32_are_accurate_to_the_tolerance(form):
    field, start, times = problem(dim=16, span=8.0)
    exact = gradients(field, start, times, collocation(**TIGHT))
    ours = gradients(in_form(form, field.float()), start.float(), times, collocation())
    assert gradient_error(ours, exact) < 3e-6


@pytest.mark.parametrize("form", ["preactivations", "p"])
def test_gradcheck_at_loose_tolerance_differentiates_the_same_intervals(form):
    field, start, times = problem(dim=2, rows=2, length=2, span=1.0)
    parameters = [p.detach().clone().requires_grad_() for p in field.parameters()]

    def run(start, times, *values):
        with torch.no_grad():
            copied = copy.deepcopy(field)
        for name, value in zip([n for n, _ in field.named_parameters()], values, strict=True):
            layer, kind = name.split(".")
            del getattr(copied, layer)._parameters[kind]
            setattr(getattr(copied, layer), kind, value)
        return solve(in_form(form, copied), start, times, method="collocation", **TIGHT)

    inputs = [start.requires_grad_(), times.requires_grad_(), *parameters]
    # A plan counts iterations for the cotangents that it meets first.
    assert torch.autograd.gradcheck(run, inputs, eps=1e-5, atol=1e-7, rtol=1e-6, nondet_tol=1e-9)


@pytest.mark.parametrize("past", [1e-3, 1e-4, 1e-5])
def test_a_time_just_past_the_beginning_of_an_interval_has_its_gradient(past):
    """The cotangents of its nodes nearly cancel; more iterations do not lessen the rounding error."""
    torch.manual_seed(0)
    field, start = MLPField(16), torch.randn(3, 16)
    for edge in solve_dense(field, start, 8.0, rtol=1e-6, atol=1e-6).edges[1:-1]:
        times = torch.tensor([0.0, float(edge) + past], dtype=torch.float64)
        ours = gradients(field, start, times, collocation())
        exact = gradients(copy.deepcopy(field).double(), start.double(), times, collocation(**TIGHT))
        assert gradient_error(ours, exact) < 3e-6


def test_times_and_starts_get_the_gradient_that_calculus_gives():
    field, start, times = problem()
    times.requires_grad_()
    p = solve(field, start, times, method="collocation", **TIGHT)
    (gradient,) = torch.autograd.grad(p.sum(), times)
    velocities = torch.stack([field(t, v).sum() for t, v in zip(times, p, strict=True)]).detach()
    torch.testing.assert_close(gradient, velocities, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("power", [1, 2])
def test_a_second_derivative_is_refused_even_if_the_loss_is_linear_in_the_vectors(power, form):
    field, start, times = problem(length=3)
    p = solve(in_form(form, field), start.requires_grad_(), times.requires_grad_(), method="collocation")
    leaves = [start, times, *field.parameters()]
    loss = p.pow(power).sum() + sum(leaf.pow(2).sum() for leaf in leaves)
    gradients = torch.autograd.grad(loss, leaves, create_graph=True)
    plain = torch.autograd.grad(loss, leaves, retain_graph=True)
    for leaf, gradient, expected in zip(leaves, gradients, plain, strict=True):
        torch.testing.assert_close(gradient.detach(), expected, rtol=1e-5, atol=1e-7)
        with pytest.raises(SecondDerivativeError, match=r"no second derivatives; .*method='dopri5'"):
            torch.autograd.grad(gradient.sum(), leaf, retain_graph=True)


def test_an_error_out_of_reach_is_told_in_what_is_accepted(monkeypatch):
    """The accepted error may be below one tolerance; the message then has the ratio to it, above 1."""
    field, start, times = problem(length=3)
    monkeypatch.setattr(solver, "bound", lambda plan, rtol: 1e-12)
    with pytest.raises(FlowInaccurate) as raised:
        solve(field, start, times, method="collocation")
    assert raised.value.error > 1


def test_dopri5_has_second_derivatives():
    field, start, times = problem(length=3)
    start.requires_grad_()

    def slope(at):
        return torch.autograd.grad(solve(field, at, times, method="dopri5").sum(), at, create_graph=True)[0]

    (second,) = torch.autograd.grad(slope(start).sum(), start)
    step = torch.full_like(start, 1e-4)
    above, below = slope(start + step).sum(), slope(start - step).sum()
    assert float(second.sum()) == pytest.approx(float((above - below).detach() / 2e-4), rel=1e-3)


def test_a_parameter_changed_before_the_backward_pass_does_not_change_the_gradient_silently():
    field, start, times = problem(length=3)
    expected = torch.autograd.grad(
        solve(field, start, times, method="collocation").sum(), list(field.parameters())
    )
    ours, general = (
        solve(field, start, times, method="collocation"),
        solve(Wrapped(field), start, times, method="collocation"),
    )
    with torch.no_grad():
        field.outer.weight.mul_(2)
    # The products of the weights are kept, the weights of a field in general are not.
    assert gradient_error(torch.autograd.grad(ours.sum(), list(field.parameters())), expected) < 1e-12
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        general.sum().backward()


def test_a_field_in_another_unit_of_time():
    field, start, times = problem()
    scale = nn.Parameter(torch.tensor(1.7, dtype=torch.float64).log())
    scaled, general = ScaledField(field, scale), Wrapped(ScaledField(field, scale))
    ours, theirs = (gradients(h, start, times, collocation(**TIGHT)) for h in (scaled, general))
    # The parameters stand in the same order in both.
    assert gradient_error(ours, theirs) < 1e-11
    plain = solve(field, start, 1.7 * times, method="collocation", **TIGHT)
    torch.testing.assert_close(solve(scaled, start, times, method="collocation", **TIGHT), plain)


def test_hooks_on_a_layer_are_honoured():
    field, start, times = problem()
    field.inner.register_forward_hook(lambda module, arguments, output: 0.5 * output)
    expected = solve(field, start, times, method="dopri8", rtol=1e-11, atol=1e-11)
    assert flow_error(solve(field, start, times, method="collocation", **TIGHT), expected) < 1e-9


def test_a_forward_put_over_a_layer_is_honoured():
    """As Accelerate does it."""
    field, start, times = problem()
    forward = field.inner.forward
    field.inner.forward = lambda x: 0.5 * forward(x)
    expected = solve(field, start, times, method="dopri8", rtol=1e-11, atol=1e-11)
    assert flow_error(solve(field, start, times, method="collocation", **TIGHT), expected) < 1e-9


def test_the_sum_of_a_sinusoid_and_a_learned_field():
    torch.manual_seed(0)
    field, times = SumField(SinusoidField(8), init_small_(MLPField(8), 60.0)), torch.arange(60.0)
    start = field.a.start()[None]
    exact = reference_solve(field, start, times)
    assert flow_error(solve(field, start, times, method="collocation"), exact) < 1e-5
    p = solve(field.a, start, times, method="collocation")
    assert flow_error(p[:, 0], sinusoid(times, 8)) < 1e-5


@settings(max_examples=8)
@given(
    scale=st.floats(0.02, 3.0),
    activation=st.sampled_from(["tanh", "silu", "gelu", "relu"]),
    dim=st.integers(1, 24),
    length=st.one_of(st.integers(1, 128), st.integers(128, 768)),
    rows=st.integers(1, 5),
    spacing=st.floats(0.01, 0.1),
    seed=st.integers(0, 3),
    rtol=st.sampled_from([1e-6, 1e-5, 1e-4]),
    learns=st.booleans(),
)
@example(
    scale=2.99285,
    activation="silu",
    dim=11,
    length=785,
    rows=3,
    spacing=0.0118313,
    seed=3,
    rtol=1e-6,
    learns=False,
)
@example(
    scale=2.0390625,
    activation="relu",
    dim=2,
    length=48,
    rows=2,
    spacing=0.0625,
    seed=2,
    rtol=1e-6,
    learns=False,
)
def test_the_error_is_within_the_tolerance_or_raised(
    scale, activation, dim, length, rows, spacing, seed, rtol, learns
):
    torch.manual_seed(seed)
    field, start = scaled(MLPField(dim, activation=activation), scale), torch.randn(rows, dim)
    times = spacing * torch.arange(1, length + 1, dtype=torch.float64)
    try:
        with torch.set_grad_enabled(learns), warnings.catch_warnings():
            warnings.simplefilter("ignore", FlowSensitive)
            p = solve(field, start, times, method="collocation", rtol=rtol, atol=rtol).detach()
    except (FlowDiverged, FlowInaccurate):
        return
    # A kink costs the eighth-order reference too many steps.
    kinked = {"method": "rk4", "step": 0.01} if activation == "relu" else {"method": "dopri8"}
    exact, moved = exact_and_moved(field, start, times, **kinked)
    # Ten times rtol, and what the flow itself makes of the last bit of its start.
    assert flow_error(p, exact) < 10 * rtol + 20 * flow_error(moved, exact)


def test_errors_that_the_flow_makes_more_of_count_as_what_they_come_to():
    """Four rows that stay near one another for long, and then leave: what arose before grows 25 times."""
    torch.manual_seed(2232)
    field, start = scaled(MLPField(4, activation="gelu"), 3), 6 * torch.randn(4, 4)
    times = 0.1 * torch.arange(1024.0)
    exact, moved = exact_and_moved(field, start, times, method="dopri8")
    for learns in (True, False):
        with torch.set_grad_enabled(learns):
            p = solve(field, start, times, method="collocation", rtol=1e-4, atol=1e-4).detach()
        assert flow_error(p, exact) < 1e-3 + 20 * flow_error(moved, exact)


def test_a_tolerance_below_float32_is_met_in_float64():
    field, start, times = problem(dtype=torch.float32)
    p = solve(field, start, times, method="collocation", rtol=1e-9, atol=1e-9)
    assert p.dtype == torch.float32
    exact = reference_solve(field, start, times)
    assert torch.equal(p, exact.float()) or flow_error(p, exact) < 1e-7  # one rounding to float32


def test_a_span_too_long_for_float32_is_solved_in_float64():
    field = SinusoidField(16)
    times = torch.linspace(0, 400, 20, dtype=torch.float64)
    p = solve(field, field.start()[None], times, method="collocation")
    assert float((p[:, 0] - sinusoid(times, 16)).abs().max()) < 1e-5


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_pipeline_depth_does_not_matter(depth, monkeypatch):
    field, start, times = problem(span=20.0)
    expected = gradients(field, start, times, collocation(**TIGHT))
    monkeypatch.setattr("floater.flow.collocation.solver.pipeline_depth", lambda _: depth)
    actual = gradients(field, start, times, collocation(**TIGHT))
    assert gradient_error(actual, expected) < 1e-10


@pytest.mark.parametrize("mode", ["train", "refresh", "bake", "extend", "learn"])
def test_the_encoder_solves_by_collocation(mode):
    model = encoder(
        method="collocation", refresh_every=3 if mode == "refresh" else 1, learn_time_scale=mode == "learn"
    )
    at = positions([0, 3, 3, 90])
    if mode in ("bake", "extend"):
        model.eval().bake(100 if mode == "bake" else 5)
    for _ in range(3):
        vectors = model(at).at(2, "k")
        torch.testing.assert_close(vectors, exact(model, 2, "k", at), rtol=1e-5, atol=1e-5)
    if mode in ("train", "learn"):
        vectors.sum().backward()
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
    assert vectors.shape == (1, 4, DIM)


def pulse(steep, at, width, size, seed, dim=3, units=6):
    """A field of the time alone, two of whose units switch one shortly after the other."""
    torch.manual_seed(seed)
    field = MLPField(dim, units)
    with torch.no_grad():
        field.inner.weight.normal_()[:, :dim] = 0
        field.outer.weight.normal_(std=0.3)
        field.inner.weight[:2, -1] = steep
        field.inner.bias[:2] = -steep * torch.tensor([at, at + width])
        field.outer.weight[:, 0] *= size
        field.outer.weight[:, 1] = -field.outer.weight[:, 0]
    return field, torch.randn(2, dim)


def integral(field, start, times):
    """The closed form: tanh integrates to log cosh."""
    weight1, bias1, weight2, bias2 = (x.detach().double() for x in field.parameters())
    rate, t = weight1[:, -1], times.unsqueeze(1)

    def log_cosh(x):
        return x.abs() + torch.log1p(torch.exp(-2 * x.abs()))

    s = (log_cosh(rate * t + bias1) - log_cosh(bias1)) / rate
    moved = s @ weight2[:, :-1].T + weight2[:, -1] * t**2 / 2 + bias2 * t
    return start.double() + moved.unsqueeze(1)


@settings(max_examples=40)
@given(
    steep=st.floats(0.5, 5.0).map(lambda x: 10**x),
    at=st.floats(0, 10),
    width=st.floats(-4, 0).map(lambda x: 10**x),
    size=st.floats(-2, 1.5).map(lambda x: 10**x),
    seed=st.integers(0, 100),
    learns=st.booleans(),
)
# a last coefficient that vanishes by chance
@example(steep=10**0.5, at=4.372059155900587, width=1.0, size=1.0, seed=59, learns=False)
def test_a_pulse_between_the_nodes_is_integrated_or_raised(steep, at, width, size, seed, learns):
    field, start = pulse(steep, at, width, size, seed)
    field, start = field.double(), start.double()  # in float32 a steep field itself is rounded by 1e-5
    times = 0.1 * torch.arange(1, 101, dtype=torch.float64)
    with torch.set_grad_enabled(learns):
        p = solve(field, start, times, method="collocation").detach()
    assert flow_error(p, integral(field, start, times)) < 1e-5


def test_a_mesh_that_a_new_pulse_falls_through_is_not_trusted():
    field, start = pulse(1e3, 4.321, 1e-2, 3.0, 0)
    quiet, state = copy.deepcopy(field), SolverState()
    with torch.no_grad():
        quiet.inner.weight[:2] = 0
    times = 0.1 * torch.arange(1, 101, dtype=torch.float64)
    solve(quiet, start, times, state=state)
    p = solve(field, start, times, state=state).detach()
    assert flow_error(p, integral(field, start, times)) < 1e-5
