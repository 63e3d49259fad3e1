"""Every argument that `solve` refuses, and the line it says."""

import pytest
import torch

from floater.flow import ZeroField, solve

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([[0.0, 1.0]], r"times must be one-dimensional .* got shape \(1, 2\)"),
        ([], r"not empty .* got shape \(0,\)"),
        ([0.0, 1.0, 1.0], r"strictly increasing, got times\[1\] = 1, times\[2\] = 1"),
        ([0.0, 2.0, 1.0], r"strictly increasing, got times\[1\] = 2, times\[2\] = 1"),
        ([-0.5, 1.0], r"before t = 0, got times\[0\] = -0.5"),
        ([0.0, NAN], r"finite, got times\[1\] = nan"),
        ([0.0, INF], r"finite, got times\[1\] = inf"),
    ],
)
def test_bad_times(times, message):
    with pytest.raises(ValueError, match=message):
        solve(ZeroField(), torch.zeros(1, 2), torch.tensor(times))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (torch.zeros(3), r"\(rows, dim\), got torch.float32 of shape \(3,\)"),
        (torch.zeros(1, 3, dtype=torch.long), r"\(rows, dim\), got torch.int64"),
        (torch.tensor([[0.0, NAN]]), "finite"),
        (torch.tensor([[0.0, INF]]), "finite"),
    ],
)
def test_bad_start(start, message):
    with pytest.raises(ValueError, match=message):
        solve(ZeroField(), start, torch.tensor([1.0]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "dopri6"}, r"unknown solver method 'dopri6'; valid: 'dopri[58]'"),
        ({"gradient": "adjont"}, r"unknown gradient 'adjont'; valid: 'adjoint'"),
        ({"rtol": 0.0}, "rtol must be a positive number, got 0.0"),
        ({"atol": -1.0}, "atol must be a positive number, got -1.0"),
        ({"atol": NAN}, "atol must be a positive number, got nan"),
        ({"method": "dopri5", "step": 0.1}, "step=0.1 does not apply to the adaptive method 'dopri5'"),
        ({"step": 0.1}, "step=0.1 does not apply to the adaptive method 'collocation'"),
        ({"method": "collocation", "step": 0.1}, "does not apply to the adaptive method 'collocation'"),
        (
            {"method": "collocation", "gradient": "adjoint"},
            "gradient='adjoint' does not apply to the method 'collocation'.* have it: dopri5, dopri8",
        ),
        ({"method": "rk4", "step": 0.0}, "step must be a positive number, got 0.0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        solve(ZeroField(), torch.zeros(1, 2), torch.tensor([1.0]), **arguments)
