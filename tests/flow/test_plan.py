"""Plans of windows: kept, checked at every solve, remade when they fail."""

import gc
import weakref

import pytest
import torch

from floater.flow import FlowDiverged, FlowInaccurate, MLPField, flow_error, reference_solve, small_, solve
from floater.flow import collocation as module
from floater.flow.plan import Plan, _plans, keep_plan, kept_plan


def problem(dim=6):
    torch.manual_seed(0)
    return MLPField(dim), torch.randn(3, dim), 0.1 * torch.arange(100, dtype=torch.float64)


@pytest.mark.parametrize("factor", [0.1, 1.25, 10.0])
def test_a_plan_made_for_other_weights_is_not_trusted(factor):
    field, start, _ = problem(dim=24)
    times = 0.1 * torch.arange(256, dtype=torch.float64)
    solve(small_(field, 25.6), start, times, method="collocation")
    with torch.no_grad():
        for parameter in field.parameters():
            parameter *= factor
    p = solve(field, start, times, method="collocation")
    assert flow_error(p, reference_solve(field, start, times)) < 1e-5


def test_a_plan_is_made_once_kept_and_remade_when_it_fails(monkeypatch):
    plans = []

    def plan(*arguments):
        plans.append(arguments)
        return original(*arguments)

    original = module.plan_windows
    monkeypatch.setattr(module, "plan_windows", plan)
    field, start, times = problem()
    for length in (100, 100, 60, 1, 99):
        solve(field, start, times[-length:] if length == 1 else times[:length], method="collocation")
    assert len(plans) == 1
    with torch.no_grad():
        field.inner.weight.mul_(10)
    for _ in range(2):
        solve(field, start, times, method="collocation")
    assert len(plans) == 2


def test_a_plan_dies_with_its_field():
    field, start, times = problem()
    solve(field, start, times, method="collocation")
    alive = weakref.ref(field)
    assert field in _plans
    del field
    gc.collect()
    assert alive() is None


def test_an_unreachable_tolerance_is_an_error(monkeypatch):
    # Windows planned for nothing: their true error is what the estimate must see.
    monkeypatch.setattr(module, "plan_windows", lambda y, begin, end, *_: [begin, end])
    field, start, _ = problem(dim=12)
    with pytest.raises((FlowInaccurate, FlowDiverged), match=r"t = 12;"):
        solve(field, start, torch.tensor([12.0]), method="collocation")


def test_a_plan_is_used_a_thousand_times_and_eight_are_kept():
    field, _, _ = problem()
    for begin in range(9):
        keep_plan(field, begin, Plan([float(begin), 10.0]))
    assert [kept_plan(field, begin, 9.5) is None for begin in range(9)] == [True] + 8 * [False]
    lives = sum(kept_plan(field, 8, 9.5) is not None for _ in range(2000))
    assert lives == 999  # one was used above


def test_a_solve_without_gradients_does_not_depend_on_what_was_solved_before():
    field, start, times = problem(dim=24)
    with torch.no_grad():
        fresh = solve(field, start, times, method="collocation")
    kept = solve(field, start, times[:50], method="collocation"), solve(field, start, times)
    with torch.no_grad():
        assert torch.equal(solve(field, start, times, method="collocation"), fresh)
    assert field in _plans
    torch.testing.assert_close(kept[1].detach(), fresh, rtol=1e-5, atol=1e-5)


def test_sweeps_that_have_become_too_few_are_counted_anew():
    field, start, times = problem(dim=24)
    solve(field, start.requires_grad_(), times, method="collocation").sum().backward()
    (plan,) = _plans[field].values()
    expected = plan.forward, plan.backward
    plan.forward, plan.backward = [1] * len(expected[0]), {n: [1] * n for n in expected[1]}
    p = solve(field, start, times, method="collocation")
    assert flow_error(p, reference_solve(field, start.detach(), times)) < 1e-5
    p.sum().backward()
    # once they were too few, each window is given one more than it takes
    assert (plan.forward, plan.backward) == ([sweeps + 1 for sweeps in expected[0]], expected[1])
    assert _plans[field] == {next(iter(_plans[field])): plan}


def test_the_error_estimate_holds_where_squares_of_p_overflow():
    torch.manual_seed(3)
    field, start = MLPField(5, activation="gelu"), torch.randn(1, 5)
    with torch.no_grad():
        for parameter in field.parameters():
            parameter *= 2.07
        times = 0.08 * torch.arange(900, dtype=torch.float64)
        p = solve(field, start, times, method="collocation")
    assert 1e22 < float(p.abs().max()) < float("inf")
    assert flow_error(p, reference_solve(field, start, times)) < 1e-5


def test_plans_do_not_become_stricter_as_weights_drift():
    field, start, times = problem(dim=16)
    for _ in range(60):
        solve(field, start, times, method="collocation")
        with torch.no_grad():
            for parameter in field.parameters():
                parameter *= 1.02
    (plan,) = _plans[field].values()
    assert plan.strict > 0.1
