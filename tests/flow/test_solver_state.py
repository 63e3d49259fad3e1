"""The state of a solver: a mesh is kept, checked at every solve, selected anew when it fails."""

import pytest
import torch
from flow_cases import scaled
from torch.utils.checkpoint import checkpoint

from floater.flow import (
    FlowDiverged,
    FlowInaccurate,
    MLPField,
    SolverState,
    flow_error,
    init_small_,
    reference_solve,
    solve,
)
from floater.flow.collocation import implicit_gradient, solver
from floater.flow.collocation.plan import Plan


def problem(dim=6):
    torch.manual_seed(0)
    return MLPField(dim), torch.randn(3, dim), 0.1 * torch.arange(100, dtype=torch.float64)


@pytest.mark.parametrize("factor", [0.1, 1.25, 10.0])
def test_a_mesh_selected_for_other_weights_is_not_trusted(factor):
    field, start, _ = problem(dim=24)
    times, state = 0.1 * torch.arange(256, dtype=torch.float64), SolverState()
    solve(init_small_(field, 25.6), start, times, method="collocation", state=state)
    p = solve(scaled(field, factor), start, times, method="collocation", state=state)
    assert flow_error(p, reference_solve(field, start, times)) < 1e-5


@pytest.fixture
def selected(monkeypatch):
    """One entry for each mesh that is selected."""
    meshes, choose = [], solver.choose_edges
    monkeypatch.setattr(
        solver, "choose_edges", lambda *arguments: (meshes.append(arguments), choose(*arguments))[1]
    )
    return meshes


def test_a_mesh_is_selected_once_kept_and_replaced_when_it_fails(selected):
    field, start, times = problem()
    state = SolverState()
    for length in (100, 100, 60, 1, 99):
        at = times[-length:] if length == 1 else times[:length]
        solve(field, start, at, method="collocation", state=state)
    assert len(selected) == 1
    with torch.no_grad():
        field.inner.weight.mul_(10)
    for _ in range(2):
        solve(field, start, times, method="collocation", state=state)
    assert len(selected) == 2
    state.reset()
    solve(field, start, times, method="collocation", state=state)
    assert len(selected) == 3


def test_an_unreachable_tolerance_is_an_error(monkeypatch):
    # A mesh of one interval whatever the field: the estimate must see its true error.
    monkeypatch.setattr(solver, "choose_edges", lambda form, start, begin, end, *_: [begin, end])
    field, start, _ = problem(dim=12)
    with pytest.raises((FlowInaccurate, FlowDiverged), match=r"t = 12;"):
        solve(field, start, torch.tensor([12.0]), method="collocation")


def test_a_plan_is_used_a_thousand_times():
    state = SolverState("problem", Plan([0.0, 10.0]))
    assert sum(state.use("problem", 9.5) is not None for _ in range(2000)) == 1000


def test_a_solve_without_a_state_depends_on_its_arguments_alone(selected):
    field, start, times = problem(dim=24)
    state = SolverState()
    fresh = solve(field, start, times, method="collocation")
    solve(field, start, times[:50], method="collocation", state=state)
    kept = solve(field, start, times, method="collocation", state=state)
    assert torch.equal(solve(field, start, times, method="collocation"), fresh)
    assert torch.equal(solve(field, start, times, method="collocation", state=SolverState()), fresh)
    torch.testing.assert_close(kept, fresh, rtol=1e-5, atol=1e-5)


def test_two_fields_with_a_state_each_do_not_disturb_each_other(selected):
    field, start, times = problem()
    other, states = MLPField(6), (SolverState(), SolverState())
    for _ in range(3):
        for h, state in zip((field, other), states, strict=True):
            solve(h, start, times, state=state)
    assert len(selected) == 2


def test_iterations_that_have_become_too_few_are_determined_anew():
    field, start, times = problem(dim=24)
    state = SolverState()
    solve(field, start.requires_grad_(), times, method="collocation", state=state).sum().backward()
    plan = state.plan
    expected = plan.forward, dict(plan.backward)
    plan.forward, plan.backward = [1] * len(expected[0]), {n: [1] * n for n in expected[1]}
    p = solve(field, start, times, method="collocation", state=state)
    assert flow_error(p, reference_solve(field, start.detach(), times)) < 1e-5
    p.sum().backward()
    # Once they were too few, each interval is given one more than it takes.
    assert (plan.forward, plan.backward) == ([count + 1 for count in expected[0]], expected[1])
    assert state.plan is plan


def test_the_error_estimate_holds_where_squares_of_p_overflow():
    torch.manual_seed(3)
    field, start = scaled(MLPField(5, activation="gelu"), 2.07), torch.randn(1, 5)
    times = 0.08 * torch.arange(900, dtype=torch.float64)
    with torch.no_grad():
        p = solve(field, start, times, method="collocation")
    assert 1e22 < float(p.abs().max()) < float("inf")
    assert flow_error(p, reference_solve(field, start, times)) < 1e-5


def test_the_safety_factor_does_not_shrink_as_weights_drift():
    field, start, times = problem(dim=16)
    state = SolverState()
    for _ in range(60):
        solve(field, start, times, method="collocation", state=state)
        scaled(field, 1.02)
    assert state.plan.safety_factor > 0.1


def test_texts_of_changing_length_share_a_mesh_and_its_iterations(selected, monkeypatch):
    solve_adjoint, observed = implicit_gradient.solve_adjoint, []

    def spied(form, linear, mesh, cotangent, rtol, counts=None):
        observed.extend([len(mesh)] * (counts is None))
        return solve_adjoint(form, linear, mesh, cotangent, rtol, counts)

    monkeypatch.setattr(implicit_gradient, "solve_adjoint", spied)
    state = SolverState()
    field, start, _ = problem(dim=16)
    start = (0.02 * start).requires_grad_()
    scaled(field, 2)
    draw = torch.Generator().manual_seed(0)
    longest = 0.1 * torch.arange(256, dtype=torch.float64)
    exact = reference_solve(field, start, longest)
    for length in [256, *torch.randint(20, 256, (30,), generator=draw).tolist()]:
        p = solve(field, start, longest[:length], state=state)
        p.square().sum().backward()
        assert flow_error(p, exact[:length]) < 1e-5
    assert len(observed) - len(set(observed)) < 6  # once for each number of intervals, and seldom anew
    assert len(selected) == 1


def test_gradients_that_overflowed_go_to_who_scaled_the_loss():
    field, start, times = problem(dim=16)
    start.requires_grad_()
    for size in (torch.inf, 1.0, torch.inf, torch.nan):
        start.grad = None
        field.zero_grad()
        (size * solve(field, start, times)).sum().backward()
        for tensor in (start, *field.parameters()):
            assert bool(tensor.grad.isfinite().all()) == (size == 1.0)


def test_what_inference_left_serves_training():
    field, start, _ = problem(dim=16)
    start.requires_grad_()
    times = torch.tensor([0.7, 3.21])  # of no other test: meshes are cached
    with torch.inference_mode():
        solve(field, start, times)
    solve(field, start, times).sum().backward()
    assert bool(start.grad.isfinite().all())


def test_a_checkpoint_saves_as_much_in_a_first_solve_as_in_its_repetition():
    """Derivatives in the error measure of a new mesh counted, so that a checkpoint could not run again."""
    field, start, times = problem()
    init_small_(field, 10.0)
    state = SolverState()

    def solved(start):
        return solve(field, start, times, method="collocation", state=state)

    start.requires_grad_()
    checkpoint(solved, start, use_reentrant=False).square().sum().backward()
    gradient, start.grad = start.grad, None
    solved(start).square().sum().backward()
    assert torch.equal(start.grad, gradient)


def test_a_checkpoint_saves_as_much_where_the_kept_mesh_fails_as_in_its_repetition():
    """The failed attempt on the kept mesh saved tensors, which the repetition on the new mesh did not."""
    field, start, times = problem(dim=24)
    init_small_(field, 9.9)
    state = SolverState()

    def solved(start):
        return solve(field, start, times, method="collocation", state=state)

    solved(start)
    kept = state.plan
    scaled(field, 10.0)
    start.requires_grad_()
    p = checkpoint(solved, start, use_reentrant=False)
    assert state.plan is not kept
    p.square().sum().backward()
    gradient, start.grad = start.grad, None
    solved(start).square().sum().backward()
    assert torch.equal(start.grad, gradient)


def test_a_solve_bounds_the_norms_of_its_rows():
    """By the bound vectors are known to be small enough, without a look at them."""
    field, start, _ = problem()
    times, state = torch.linspace(0, 9.9, 2000, dtype=torch.float64), SolverState()
    p = solve(field, start, times, method="collocation", state=state)
    assert float(p.detach().norm(dim=-1).max()) <= state.largest < 1e3
