"""Runge-Kutta methods: torchdiffeq's steps, with outputs and gradients linear in the number of times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torchdiffeq._impl.adjoint import OdeintAdjointMethod, handle_adjoint_norm_
from torchdiffeq._impl.odeint import SOLVERS

from floater.flow.checks import ADAPTIVE_METHODS, FIXED_STEP_METHODS
from floater.flow.dynamics import Dynamics
from floater.flow.errors import FlowDiverged, FlowError, FlowStiff
from floater.flow.precision import wide_dtype
from floater.flow.second_derivatives import DISCRETE, refuse_second_derivatives
from floater.flow.stiffness import failure

MAX_STEPS = 100_000
"""More steps than this take minutes; a solve that needs them is stiff or diverges."""

MAX_EVALUATIONS = 16 * MAX_STEPS
"""Evaluations of all steps and of the adjoint, whose steps are not counted; no method has more a step."""

# Growth of p, relative to the start and one, beyond which float64 has no digit of the start left.
_LARGE = 2.0**53
# Number of successive steps too short for `MAX_STEPS` after which the solve ends.
_SHORT = 1000


class _Watched(Dynamics):
    """Dynamics with the interface that torchdiffeq's solvers call."""

    time: Tensor | float = 0.0
    evaluations = 0
    span = 0.0

    def __call__(self, t: Tensor, p: Tensor, perturb: object = None) -> Tensor:
        """Return the velocity; `perturb` (which side of a jump to take) is torchdiffeq's and not needed."""
        self.time = t.detach()  # the time to report if the solve fails
        self.evaluations += 1
        if self.evaluations > MAX_EVALUATIONS:
            raise self.too_many(p, f"{MAX_EVALUATIONS} evaluations were not enough")
        return self.velocity(t, p)

    def callback_step(self, *_: object) -> None:
        """Do nothing; torchdiffeq calls this before each step."""

    callback_accept_step = callback_reject_step = callback_step

    def too_many(self, p: Tensor, reason: str) -> FlowError:
        """Return the error of a solve that takes too many steps at `time` and vectors p (rows, dim)."""
        return failure(self.field, float(self.time), p, span=self.span, reason=reason)

    def diverged(self, error: AssertionError) -> FlowDiverged:
        """Return torchdiffeq's assertion as a typed error."""
        return FlowDiverged(float(self.time), _first_line(error))


def _first_line(error: AssertionError) -> str:
    """Return torchdiffeq's message without the state that it prints."""
    return str(error).split("`")[0].strip(" :")


def runge_kutta(
    field: nn.Module,
    start: Tensor,
    times: Tensor,
    *,
    method: str,
    rtol: float,
    atol: float,
    step: float,
    adjoint: bool,
) -> Tensor:
    """Solve by one of torchdiffeq's Runge-Kutta methods.

    Args:
        field: See `floater.flow.solve`.
        start: p at the first time (rows, dim).
        times: Strictly increasing times (length,), wide.
        method: One of `ADAPTIVE_METHODS` or `FIXED_STEP_METHODS`.
        rtol, atol: Tolerances of an adaptive method.
        step: Longest step of a fixed-step method.
        adjoint: Whether the gradient is that of the continuous adjoint (FLOATER, equations 16 and 17) instead
            of that of the steps.

    Returns:
        p at the times (length, rows, dim), the first being the start.

    Raises:
        FlowDiverged: if a step vanishes, or `MAX_STEPS` steps are not enough.
        FlowStiff: if the steps are not enough because the field is stiff.
    """
    dynamics = _Watched(field, start)
    dynamics.span = float(times[-1].detach() - times[0].detach())
    run = _adjoint_solve if adjoint else _discrete_solve
    return run(dynamics, start.to(wide_dtype(start.device)), times, method, rtol, atol, step)


def _discrete_solve(
    dynamics: _Watched, state: Tensor, times: Tensor, method: str, rtol: float, atol: float, step: float
) -> Tensor:
    options = _options(method, times, step)
    solver = SOLVERS[method](func=dynamics, y0=state, rtol=rtol, atol=atol, norm=_worst_row, **options)
    steps = _adaptive_steps if method in ADAPTIVE_METHODS else _fixed_steps
    return torch.cat([state.unsqueeze(0).to(dynamics.out_dtype), *steps(solver, times)])


def _adjoint_solve(
    dynamics: _Watched, state: Tensor, times: Tensor, method: str, rtol: float, atol: float, step: float
) -> Tensor:
    options = _options(method, times, step)
    if method in ADAPTIVE_METHODS:
        options["max_num_steps"] = MAX_STEPS
    backward_options = dict(options)
    handle_adjoint_norm_(backward_options, None, _worst_row)
    parameters = [tensor for tensor in dynamics.tensors.values() if tensor.requires_grad]

    def field(t: Tensor, p: Tensor) -> Tensor:
        if p.requires_grad:  # in the backward pass
            dynamics.bind()
        # The adjoint differentiates in p, which a field need not depend on.
        return dynamics(t, p) + 0.0 * p

    try:
        solution: Tensor = _Adjoint.apply(
            *(None, field, state, times, rtol, atol, method, options | {"norm": _worst_row}, None),
            *(rtol, atol, method, backward_options, times.requires_grad, *parameters),
        )
    except AssertionError as error:
        raise dynamics.diverged(error) from error
    return solution.to(dynamics.out_dtype)


class _Adjoint(OdeintAdjointMethod):  # type: ignore[misc]
    """torchdiffeq's adjoint, with a typed error when the solve backwards in time fails."""

    @staticmethod
    @refuse_second_derivatives("gradient='adjoint'", DISCRETE)
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        try:
            return OdeintAdjointMethod.backward(ctx, *gradients)
        except AssertionError as error:
            if not all(bool(x.isfinite().all()) for x in gradients):  # the loss scale was too large
                return _not_numbers(ctx, *gradients)
            reason = f"in the adjoint: {_first_line(error)}"
            raise FlowDiverged(float(ctx.saved_tensors[0][-1]), reason) from error


def _not_numbers(ctx: Any, *gradients: Tensor) -> Any:
    """Return NaN for each gradient of the adjoint, by which a scaler of losses knows the overflow."""
    results = OdeintAdjointMethod.backward(ctx, *map(torch.zeros_like, gradients))
    return tuple(x if x is None else torch.full_like(x, math.nan) for x in results)


def _worst_row(error: Tensor) -> Tensor:
    """Return the root mean square over dim, the largest over rows."""
    return error.square().mean(dim=-1).amax().sqrt()


def _options(method: str, times: Tensor, step: float) -> dict[str, Any]:
    """Return options of torchdiffeq with which outputs are as accurate as the steps."""
    if method in FIXED_STEP_METHODS:
        # Between grid points torchdiffeq interpolates linearly.
        return {"grid_constructor": lambda _func, _state, t: subdivide(t, step)}
    # Within a step it interpolates by a quartic, which is not enough for an eighth-order method.
    return {"step_t": times.detach()} if SOLVERS[method].order > 5 else {}


def subdivide(times: Tensor, step: float) -> Tensor:
    """Insert equal steps, no longer than `step`, between each two times.

    Raises:
        FlowDiverged: if there are more steps than a solve may take.

    Example:
        >>> subdivide(torch.tensor([0.0, 0.5, 2.0]), 1.0)
        tensor([0.0000, 0.5000, 1.2500, 2.0000])
    """
    gap = times.diff()
    # The tolerance keeps 0.1 / 0.02 at five steps when the quotient rounds up.
    counts = (gap.detach().abs() / step - 1e-6).ceil().clamp(min=1)
    if float(counts.sum()) > MAX_STEPS:
        late = int((counts.cumsum(0) <= MAX_STEPS).sum())
        raise FlowDiverged(float(times[late]), f"{MAX_STEPS} steps are not enough")
    counts = counts.long()
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    part = torch.arange(len(first), device=times.device) - first
    left, gap, counts = (x.repeat_interleave(counts) for x in (times[:-1], gap, counts))
    return torch.cat((left + gap * (part / counts), times[-1:]))


def _adaptive_steps(solver: Any, times: Tensor) -> Iterator[Tensor]:
    """Advance an adaptive solver; yield p at the requested times that each step passes.

    torchdiffeq writes outputs into one tensor, one at a time, which makes the backward pass
    quadratic in the number of times. Here each accepted step gives all its outputs by one product
    of the interpolant's weights with the step's stages.
    """
    solver._interp_fit = lambda y0, _y1, k, _dt: (y0, k)
    solver._before_integrate(times.detach())
    # The first step size comes from norms, which have no gradient at zero; it needs none.
    solver.rk_state = solver.rk_state._replace(dt=solver.rk_state.dt.detach())
    weights = _interpolant(solver)
    wanted, done, short = times.tolist(), 1, 0
    for remaining in range(MAX_STEPS, 0, -1):
        reached = float(solver.rk_state.t1)
        # Left alone, this index stays behind for good when a step ends exactly at its time.
        solver.next_step_index = done
        try:
            solver.rk_state = solver._adaptive_step(solver.rk_state)
        except AssertionError as error:
            solver.func.time = reached
            raise solver.func.diverged(error) from error
        t0, t1 = float(solver.rk_state.t0), float(solver.rk_state.t1)
        passed = next((i for i in range(done, len(wanted)) if wanted[i] > t1), len(wanted))
        if passed > done:
            y0, k = solver.rk_state.interp_coeff
            x = (times[done:passed] - t0) / (t1 - t0)
            powers = torch.stack((x, x**2, x**3, x**4), dim=1) * (t1 - t0)
            yield (y0 + torch.einsum("ns,rds->nrd", powers @ weights, k)).to(solver.func.out_dtype)
            done = passed
        if done == len(wanted):
            return
        step = float(solver.rk_state.dt)
        short = short + 1 if wanted[-1] - t1 > remaining * step else 0
        if short == 1:
            longest = step
        # Steps that become ever shorter lead to a pole, whose time is to be named.
        if short == _SHORT:
            if step > longest / 2:
                break
            short = 0
    solver.func.time = solver.rk_state.t1.detach()
    raise solver.func.too_many(solver.rk_state.y1.detach(), f"{MAX_STEPS} steps are not enough")


def _interpolant(solver: Any) -> Tensor:
    """Return the weights (4, stages) of the quartic through a step, in powers 1 to 4 of its elapsed part.

    The quartic takes the values and slopes at both ends and the value in the middle. With weights
    on the stages rather than on the values it only adds small numbers to the state.
    """
    end, middle = solver.tableau.c_sol, solver.mid
    slope0, slope1 = torch.zeros_like(end), torch.zeros_like(end)
    slope0[0] = slope1[-1] = 1.0
    return torch.stack(
        (
            slope0,
            slope1 - 4 * slope0 - 5 * end + 16 * middle,
            5 * slope0 - 3 * slope1 + 14 * end - 32 * middle,
            2 * (slope1 - slope0) - 8 * end + 16 * middle,
        )
    )


@torch.no_grad()
def check_steps(
    solution: Tensor, field: nn.Module, start: Tensor, times: Tensor, *, method: str, step: float
) -> None:
    """Check that a fixed-step solve is finite, and not so large because its steps are unstable.

    Args:
        solution: The result of the solve (length, rows, dim).
        field, start, times, method, step: The arguments of `runge_kutta`.

    Raises:
        FlowDiverged: if the solution is not finite; with the time of the first step that is not.
        FlowStiff: if this, or growth beyond all digits, comes from steps too long for a stiff field.
    """
    scale = float(start.detach().abs().max().clamp(min=1.0))
    if float(solution.detach().abs().max()) < _LARGE * scale:
        return
    dynamics = _Watched(field, start)
    p = calm = start.detach().to(wide_dtype(start.device))
    grid = subdivide(times.detach(), step)
    solver = SOLVERS[method](func=dynamics, y0=p, rtol=0.0, atol=0.0)
    calm_until = float(grid[0])
    for t0, t1 in pairwise(grid):
        p = p + solver._step_func(dynamics, t0, t1 - t0, t1, p)[0]
        finite = bool(p.to(dynamics.out_dtype).isfinite().all())
        if finite and float(p.abs().max()) < 10 * scale:
            calm, calm_until = p, float(t1)
        elif not finite:
            break
    length = float(t1 - t0)
    reason = f"steps of {length:.3g} are too long for {method!r}"
    # Explicit methods are stable up to rates of two to three per step.
    error = failure(field, calm_until, calm, span=length, reason=reason, forgets=2.0)
    if isinstance(error, FlowStiff):
        raise error
    if not finite:
        raise FlowDiverged(float(t1), "NaN or infinity in p")


def _fixed_steps(solver: Any, times: Tensor) -> Iterator[Tensor]:
    """Advance a fixed-step solver over its grid; yield p at the requested times."""
    grid = solver.grid_constructor(solver.func, solver.y0, times)
    wanted = set(torch.searchsorted(grid.detach(), times.detach()).tolist())
    p = solver.y0
    for index, (t0, t1) in enumerate(pairwise(grid), start=1):
        change, _ = solver._step_func(solver.func, t0, t1 - t0, t1, p)
        p = p + change
        if index in wanted:
            yield p.unsqueeze(0).to(solver.func.out_dtype)
