"""Solve dp/dt = h(t, p): the public function `solve`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from floater.flow.autograd import outside_inference_mode
from floater.flow.checks import ADAPTIVE_METHODS, FIXED_STEP_METHODS, check_choice
from floater.flow.collocation.plan import SolverState
from floater.flow.collocation.solver import check_finite, solve_dense
from floater.flow.dynamics import Dynamics, check_problem
from floater.flow.errors import FlowDiverged
from floater.flow.precision import wide_dtype
from floater.flow.units import has_known_kinks

COLLOCATION = "collocation"
METHODS = ("auto", COLLOCATION, *ADAPTIVE_METHODS, *FIXED_STEP_METHODS)
GRADIENTS = ("discrete", "adjoint")

# The paper's (appendix B.1): a fifth of delta, which is 0.1 there.
PAPER_STEPS = 5
PAPER_STEP = 0.1 / PAPER_STEPS
# An adaptive method keeps its tolerance in each step, and the errors of the steps add up: with kinks to 60
# to 1,900 tolerances in 24 fields. With tolerances divided by this, 23 of them err by less than ten.
_STRICTER = 128


@outside_inference_mode
def solve(
    field: nn.Module,
    start: Tensor,
    times: Tensor,
    *,
    begin: float = 0.0,
    method: str = "auto",
    rtol: float = 1e-6,
    atol: float = 1e-6,
    step: float | None = None,
    gradient: str = "discrete",
    state: SolverState | None = None,
) -> Tensor:
    """Solve dp/dt = h(t, p) from a start and return p at the requested times.

    Source: equations 8 and 15 of the FLOATER paper; the adjoint gradient is equations 16 and 17 (Chen et al.,
    "Neural Ordinary Differential Equations", 2018). "collocation" is `floater.flow.solve_dense`, the other
    methods are torchdiffeq's. The running state is kept in float64 and the field is evaluated in the widest
    of float32, the start's and the parameters' dtypes, with autocast off and without TF32, so half-precision
    models solve in float32. TF32 is also off in the adjoint iterations of collocation; in other backward
    passes it is as the caller chose. In a backward pass under autocast, which PyTorch advises against,
    autocast chooses the precision of all operations outside the solve.

    Args:
        field: Any module with `forward(t, p)`: scalar t, p (rows, dim), returns (rows, dim).
        start: The state at time `begin`: (rows, dim). All rows share the field and are one batch.
        times: Requested times (length,), strictly increasing, none before `begin`. They are checked on the
            CPU; on it already, they need no synchronisation with a GPU.
        begin: The time at which `start` holds.
        method: A name from `METHODS`. "auto" is "collocation" for a field whose `smooth` is true, or whose
            kinks are in units known to the library; "dopri5" with stricter tolerances for any other, and
            for the adjoint gradient.
        rtol: Relative tolerance of adaptive methods. Those of torchdiffeq keep it in each step, not in all
            of them together; "collocation" measures the error and keeps ten tolerances at the end.
        atol: Absolute tolerance of adaptive methods. A step's error is the root mean square over
            dim of the worst row (in "collocation" the norm), so that no row is diluted by the others.
        step: Longest step of a fixed-step method; 0.02 (the paper's, appendix B.1) if not given. The
            grid always contains the requested times. Its error is not estimated.
        gradient: "discrete" differentiates the solver's steps. "adjoint", which "collocation" does not have,
            needs less memory and more time: it solves backwards in time.
        state: State of earlier solves of this field by "collocation", whose mesh is reused. None selects a
            mesh first, and the result depends on nothing but the other arguments.

    Returns:
        p at the requested times (length, rows, dim): float64 for a float64 start, else float32.

    Raises:
        TypeError: if the field is not a module, or start or times are not tensors.
        ValueError: if an argument is not as described above.
        FlowDiverged: if p becomes infinite or NaN, a step vanishes, or 100,000 steps are not enough.
        FlowStiff: if the field is stiff and the method is explicit, or "collocation" has too many rows and
            components for Newton's method.
        FlowInaccurate: if "collocation" cannot meet the tolerance.
        FlowTransformError: under `torch.vmap` or a transform of `torch.func`.

    Example:
        >>> from floater.flow import SinusoidField
        >>> field = SinusoidField(2)
        >>> solve(field, field.start()[None], torch.tensor([math.pi / 2]))[0].abs().round(decimals=4)
        tensor([[1., 0.]])
    """
    automatic = method == "auto"
    check_problem(field, start)
    method, step = check_options(field, method=method, rtol=rtol, atol=atol, step=step, gradient=gradient)
    if not isinstance(times, Tensor):
        raise TypeError(f"times must be a tensor (length,), got {type(times).__name__}")
    exact = times.detach().to("cpu", torch.float64)
    _check_times(exact, begin)
    last = float(exact[-1])
    if method == COLLOCATION and last > begin:
        return solve_dense(field, start, last, begin=begin, rtol=rtol, atol=atol, state=state).at(times)
    check_finite(start)
    times = times.to(start.device, wide_dtype(start.device))
    begins = float(exact[0]) == begin
    first = _at_begin(field, start, times[0], begin)
    if begins and len(exact) == 1:
        return first
    grid = torch.cat((times.new_full((1,), begin), times[1:] if begins else times))
    if automatic:
        rtol, atol = rtol / _STRICTER, atol / _STRICTER
    with torch.device("cpu"):  # the first import is torchdiffeq's, whose constants are tensors
        from floater.flow.runge_kutta import check_steps, runge_kutta
    adjoint = gradient == "adjoint"
    solution = runge_kutta(
        field, start, grid, method=method, rtol=rtol, atol=atol, step=step, adjoint=adjoint
    )
    if method in FIXED_STEP_METHODS:
        check_steps(solution, field, start, grid, method=method, step=step)
    else:
        _check_finite(solution, grid)
    return torch.cat((first, solution[1:])) if begins else solution[1:]


def _at_begin(field: nn.Module, start: Tensor, time: Tensor, begin: float) -> Tensor:
    """Return p (1, rows, dim) at a time that equals `begin`: the start, and its velocity as gradient."""
    dynamics = Dynamics(field, start)
    state = start.to(time.dtype)
    first = state.unsqueeze(0)
    if time.requires_grad and float(time.detach()) == begin:
        first = first + (time - begin) * dynamics.velocity(time, state).detach()
    return first.to(dynamics.out_dtype)


def check_options(
    field: nn.Module, *, method: str, rtol: float, atol: float, step: float | None, gradient: str
) -> tuple[str, float]:
    """Check the options of `solve` before there is anything to solve.

    Args:
        field: The field, which decides what "auto" means.
        method, rtol, atol, step, gradient: See `solve`.

    Returns:
        The method to use and its longest step (which an adaptive method ignores).

    Raises:
        ValueError: if an option is not valid.

    Example:
        >>> from floater.flow import MLPField
        >>> field = MLPField(2, activation="relu")
        >>> check_options(field, method="auto", rtol=1e-6, atol=1e-6, step=None, gradient="discrete")
        ('collocation', 0.02)
    """
    check_choice("solver method", method, METHODS)
    check_choice("gradient", gradient, GRADIENTS)
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if not 0 < tolerance < math.inf:
            raise ValueError(f"{name} must be a positive number, got {tolerance}")
    if method == "auto":
        method = COLLOCATION if gradient == "discrete" and has_known_kinks(field) else "dopri5"
    if method == COLLOCATION and gradient == "adjoint":
        raise ValueError(
            "gradient='adjoint' does not apply to the method 'collocation', which has the gradient of its "
            f"discrete solution; methods that have it: {', '.join((*ADAPTIVE_METHODS, *FIXED_STEP_METHODS))}"
        )
    if step is None:
        return method, PAPER_STEP
    if method in (COLLOCATION, *ADAPTIVE_METHODS):
        raise ValueError(
            f"step={step} does not apply to the adaptive method {method!r}, which takes rtol and atol; "
            f"fixed-step methods: {', '.join(FIXED_STEP_METHODS)}"
        )
    if not 0 < step < math.inf:
        raise ValueError(f"step must be a positive number, got {step}")
    return method, step


def _check_times(times: Tensor, begin: float) -> None:
    if not math.isfinite(begin):
        raise ValueError(f"begin must be finite, got {begin}")
    if times.dim() != 1 or len(times) == 0:
        raise ValueError(
            f"times must be one-dimensional and not empty (length,), got shape {tuple(times.shape)}"
        )
    finite = times.isfinite()
    if not bool(finite.all()):
        index = int((~finite).nonzero()[0])
        raise ValueError(f"times must be finite, got times[{index}] = {float(times[index])}")
    falls = times.diff() <= 0
    if bool(falls.any()):
        index = int(falls.nonzero()[0]) + 1
        before, after = float(times[index - 1]), float(times[index])
        raise ValueError(
            f"times must be strictly increasing, got times[{index - 1}] = {before:g}, "
            f"times[{index}] = {after:g}"
        )
    if float(times[0]) < begin:
        raise ValueError(f"times must not lie before t = {begin:g}, got times[0] = {float(times[0]):g}")


def _check_finite(solution: Tensor, times: Tensor) -> None:
    finite = solution.detach().isfinite().flatten(1).all(dim=1)
    if not bool(finite.all()):
        raise FlowDiverged(float(times[int((~finite).nonzero()[0])].detach()), "NaN or infinity in p")
