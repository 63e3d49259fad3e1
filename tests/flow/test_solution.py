"""Dense output: the solution read at any time of its span."""

import pytest
import torch

from floater.flow import FlowDiverged, MLPField, reference_solve, solve_dense

TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def problem():
    torch.manual_seed(0)
    field = MLPField(6).double()
    return field, torch.randn(3, 6, dtype=torch.float64), torch.rand(20, dtype=torch.float64) * 4


def test_a_dense_solution_is_read_anywhere_and_in_any_order():
    field, start, times = problem()
    solution = solve_dense(field, start, 4.0, **TIGHT)
    shuffled = times.repeat(2).requires_grad_()
    p = solution.at(shuffled)
    for vector, t in zip(p, shuffled, strict=True):
        expected = reference_solve(field, start, t.detach()[None])[0]
        torch.testing.assert_close(vector, expected, rtol=1e-9, atol=1e-9)
    (gradient,) = torch.autograd.grad(p[3].sum(), shuffled)
    assert gradient.nonzero().flatten().tolist() == [3]
    assert torch.equal(solution.at(torch.zeros(1))[0], start)


def test_what_a_dense_solution_refuses():
    field, start, _ = problem()
    solution = solve_dense(field, start, 4.0, begin=1.0)
    for times, message in (
        (torch.tensor([0.5]), r"from t = 1 to 4, which the solution spans, got 0.5"),
        (torch.tensor([4.5, 2.0]), "got 4.5"),
        (torch.tensor([torch.nan]), "got nan"),
        (torch.tensor(2.0), r"\(length,\) and not empty, got shape \(\)"),
    ):
        with pytest.raises(ValueError, match=message):
            solution.at(times)
    with pytest.raises(ValueError, match="end must be a finite time after begin = 1, got 1"):
        solve_dense(field, start, 1.0, begin=1.0)


class Grows(torch.nn.Module):
    """dp/dt = p, which says that it is not smooth, and so is solved in float64."""

    smooth = False

    def forward(self, t, p):
        return p


def test_vectors_too_large_for_their_dtype_are_an_error():
    solution = solve_dense(Grows(), torch.ones(1, 2), 100.0)
    assert solution.at(torch.tensor([80.0])).log().mean() == pytest.approx(80.0, abs=1e-4)
    with pytest.raises(FlowDiverged, match=r"t = 90.*too large for torch.float32"):
        solution.at(torch.tensor([80.0, 90.0, 95.0]))
