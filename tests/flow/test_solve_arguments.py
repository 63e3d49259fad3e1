"""Every argument that `solve` refuses, and the line it says."""

import pytest
import torch
from torch import nn

from floater.flow import FlowEncoder, FlowTransformError, MLPField, SumField, ZeroField, solve, solve_dense


class Returns(nn.Module):
    """A field that returns what a function of p gives."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, t, p):
        return self.function(p)


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


@pytest.mark.parametrize("begin", [NAN, -INF])
def test_a_begin_that_is_not_finite(begin):
    with pytest.raises(ValueError, match=f"begin must be finite, got {begin}"):
        solve(ZeroField(), torch.zeros(1, 2), torch.tensor([1.0]), begin=begin)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (torch.zeros(3), r"\(rows, dim\) and not empty, got torch.float32 of shape \(3,\)"),
        (torch.zeros(1, 3, dtype=torch.long), r"\(rows, dim\) and not empty, got torch.int64"),
        (torch.zeros(0, 3), r"not empty, got torch.float32 of shape \(0, 3\)"),
        (torch.tensor([[0.0, NAN]]), "finite"),
        (torch.tensor([[0.0, INF]]), "finite"),
    ],
)
def test_bad_start(start, message):
    with pytest.raises(ValueError, match=message):
        solve(ZeroField(), start, torch.tensor([1.0]))


@pytest.mark.parametrize("method", ["collocation", "dopri5"])
@pytest.mark.parametrize(
    ("field", "start", "times", "error", "message"),
    [
        (lambda t, p: -p, torch.ones(1, 2), torch.ones(1), TypeError, "a torch.nn.Module .* got function"),
        (ZeroField(), [[1.0]], torch.ones(1), TypeError, r"start must be a tensor \(rows, dim\), got list"),
        (ZeroField(), torch.ones(1, 2), [1.0], TypeError, r"times must be a tensor \(length,\), got list"),
        (MLPField(3), torch.ones(1, 2), torch.ones(1), ValueError, "start is 2 wide, .* vectors are 3 wide"),
        (
            SumField(ZeroField(), MLPField(3)),
            torch.ones(1, 2),
            torch.ones(1),
            ValueError,
            "start is 2 wide, .* vectors are 3 wide",
        ),
        (
            Returns(lambda p: p[:, :1]),
            torch.ones(1, 2),
            torch.ones(1),
            ValueError,
            r"= \(1, 2\), got \(1, 1\)",
        ),
        (Returns(lambda p: [1.0]), torch.ones(1, 2), torch.ones(1), ValueError, r"= \(1, 2\), got list"),
    ],
)
def test_bad_types_and_widths(field, start, times, error, message, method):
    with pytest.raises(error, match=message):
        solve(field, start, times, method=method)


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


def test_lists_and_functions_are_named():
    start = torch.ones(1, 2)
    with pytest.raises(TypeError, match="end must be a number, got list"):
        solve_dense(ZeroField(), start, [1.0])
    with pytest.raises(TypeError, match=r"times must be a tensor \(length,\), got list"):
        solve_dense(ZeroField(), start, 1.0).at([0.5])
    with pytest.raises(TypeError, match=r"positions must be a tensor \(N, T\), got list"):
        FlowEncoder(ZeroField(), 2, blocks=[0], names=["q"])([[0, 1]])
    with pytest.raises(TypeError, match=r"the field must be a torch.nn.Module .* got function"):
        FlowEncoder(lambda t, p: p, 2, blocks=[0], names=["q"])
    with pytest.raises(TypeError, match=r"the field must be a torch.nn.Module .* got function"):
        solve(lambda t, p: p, start, torch.ones(1))


@pytest.mark.parametrize("method", ["collocation", "rk4"])
@pytest.mark.parametrize(
    "transformed",
    [
        lambda run: torch.vmap(run)(torch.ones(3, 1, 2)),
        lambda run: torch.func.grad(lambda start: run(start).sum())(torch.ones(1, 2)),
        lambda run: torch.func.jvp(run, (torch.ones(1, 2),), (torch.ones(1, 2),)),
    ],
    ids=["vmap", "grad", "jvp"],
)
def test_transforms_are_refused(transformed, method):
    field = MLPField(2)
    with pytest.raises(
        FlowTransformError, match=r"cannot run under torch\.vmap or a transform of torch\.func"
    ):
        transformed(lambda start: solve(field, start, torch.ones(1), method=method))
