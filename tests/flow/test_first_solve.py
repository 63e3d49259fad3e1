"""The work of a first solve, which selects a mesh and measures its error, against that of a kept one."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from floater.flow import MLPField, SolverState, SumField, ZeroField, solve_dense
from floater.flow.collocation import error_control
from floater.flow.collocation.error_control import solve_edges
from floater.flow.precision import norms


class Products(TorchDispatchMode):
    """Count the multiplications of matrix products; one in float64 counts as two."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default):
            a, b = args[-2:]
            self.count += a.numel() * b.shape[-1] * a.element_size() // 4
        return func(*args, **(kwargs or {}))


def work(field, start, state, backward):
    with Products() as products, torch.set_grad_enabled(backward):
        p = solve_dense(field, start, 51.1, state=state).at(torch.linspace(0, 51.1, 512).double())
        if backward:
            p.sum().backward()
    return products.count


@pytest.mark.parametrize(("backward", "most"), [(False, 2.7), (True, 1.9)])
def test_the_products_of_a_first_solve_are_few_times_those_of_a_kept_one(backward, most):
    torch.manual_seed(0)
    field, start = MLPField(256), 0.02 * torch.randn(18, 256)
    state = SolverState()
    first = work(field, start.requires_grad_(), state, backward)
    assert state.plan.error_ratio is not None
    assert first < most * work(field, start, state, backward)


@pytest.mark.parametrize("units", [True, False])
@pytest.mark.parametrize("activation", ["tanh", "gelu", "relu"])
def test_the_measured_error_is_that_of_a_fine_solve(activation, units, monkeypatch):
    torch.manual_seed(1)
    field, start, rtol = MLPField(8, 12, activation), torch.randn(3, 8), 1e-4
    with torch.no_grad():
        field.inner.weight.mul_(3)
    field = field if units else SumField(field, ZeroField())
    measured, original = [], error_control.error_and_condition

    def measure(field, form, start, solution, *arguments, **condition):
        error, number = original(field, form, start, solution, *arguments, **condition)
        measured.append((solution, error))
        return error, number

    monkeypatch.setattr(error_control, "error_and_condition", measure)
    solve_dense(field, start, 10.0, rtol=rtol, atol=rtol)
    ((solution, error),) = measured
    parts = torch.arange(8, dtype=torch.float64) / 8
    edges = torch.tensor(solution.edges, dtype=torch.float64)
    fine = [*(edges[:-1, None] + edges.diff()[:, None] * parts).flatten().tolist(), 10.0]
    with torch.no_grad():
        p, exact = solution.edge_values, solve_edges(field, start, fine, 1e-12, 1e-12)[::8]
    expected = float((norms(exact - p) / (rtol * norms(p)).clamp(min=rtol)).max())
    assert error > 0.6 * expected - 0.05
    if activation != "relu":  # the quadrature of the defect errs at kinks, too
        assert error < 1.6 * expected + 0.05
