"""Solutions by Gauss-Legendre collocation, parallel in time: piecewise polynomials of exact gradient."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from floater.flow.conditioning import amplification, global_error, warn_if_sensitive
from floater.flow.coordinates import Coordinates, coordinates
from floater.flow.errors import FlowDiverged, FlowError, FlowInaccurate
from floater.flow.field import is_smooth
from floater.flow.legendre import gauss
from floater.flow.nonblocking import defer, defers, settle, watch_optimizers
from floater.flow.piecewise import Dense
from floater.flow.plan import Plan, keep_plan, kept_plan, plan_windows, truncation
from floater.flow.stepping import full_precision, norms, wide_dtype
from floater.flow.sweeps import NoConvergence, backward_sweeps, forward_sweeps
from floater.flow.windows import NODES, Windows, tiled

# Sweeps stop when their change is a few times the tolerance: what is left then is smaller by the
# contraction, which is 0.1 to 0.2.
_SWEPT_FORWARD, _SWEPT_BACKWARD = 10.0, 6.0
# A kept number of backward sweeps serves until what it leaves has doubled, or training would count too often.
_SERVES = 2.0
# Where a failure is noticed too late to solve again, plans and numbers of sweeps are made anew before it.
_SPARE = 0.75

# The error of p may come to ten tolerances, and to what the flow makes of 20 roundings of the start to
# float32. Half of that is aimed at, since of a kept plan only the windows' estimates are known, whose sum
# follows the error that was found. Where they are no larger than roundings, it is not looked for. Changes
# that have grown past some size grow no more: there the flow is taken to do the worst to each.
_ERROR, _ROUNDINGS, _ROUNDING = 5.0, 10.0, 2.0**-23
_MOST, _LEAST, _UNSEEN = 10.0, 0.05, (0.1, 1.5)
_FADING, _SATURATED = 0.5, 1e3
_AIMED, _ATTEMPTS = 0.5, 6

# Past a kink Legendre coefficients decay slowly, and estimates that rest on their decay are too low.
_KINKED = 0.1


def dense(
    field: nn.Module,
    start: Tensor,
    end: float,
    *,
    begin: float = 0.0,
    rtol: float = 1e-6,
    atol: float = 1e-6,
) -> Dense:
    """Solve dp/dt = h(t, p) over a span by collocation, parallel in time.

    Source: Gauss-Legendre collocation (Hairer, Norsett, Wanner, "Solving Ordinary Differential
    Equations I", 1993, section II.7) of eight nodes in windows, whose equations are solved by
    fixed-point sweeps, over several windows at once where that pays. An `MLPField` is solved in its
    preactivations, where one product of an evaluation replaces two. The gradient is that of the
    discrete solution, by sweeps over the transposed system; it cannot be differentiated again.

    The windows' lengths follow from the decay of their Legendre coefficients. In training the field
    keeps them for the next solve; a solve without gradients depends on nothing but its arguments. Every
    solve estimates its error, of the sweeps and of the polynomials; of a new plan it is found, by one more
    solve in windows half as long. It plans anew where the error is above five tolerances, and above what the
    flow makes of ten roundings of the start to float32. The arithmetic is float64 where float32 cannot hold
    `rtol` or fails to meet it. A field that says it is not smooth is solved to a tenth of the tolerance.

    A new plan of float32 vectors in training is also followed by a solve from a start a little apart:
    where the flow makes more of float32's last bit than ten times `rtol`, it warns (`FlowSensitive`).

    On a GPU a solve in training that has a plan waits for nothing. Its errors are read before the next step
    of any optimizer, which is not taken if one is too large (`floater.flow.settle`).

    Args:
        field: Any module with `forward(t, p)`: scalar t, p (rows, dim), returns (rows, dim). One
            that cannot be evaluated under `torch.vmap` is evaluated node by node.
        start: p at time `begin` (rows, dim).
        end: The last time, after `begin`.
        begin: The first time.
        rtol: Tolerance of the Euclidean norm of the error of a row, relative to that of the row.
        atol: The least tolerance.

    Returns:
        The solution.

    Raises:
        ValueError: if `end` is not after `begin`.
        FlowDiverged: if p becomes infinite or NaN, or windows vanish.
        FlowInaccurate: if no plan meets the tolerance.

    Example:
        >>> from floater.flow import SinusoidField
        >>> field = SinusoidField(2)
        >>> circle = dense(field, field.start()[None], 7.0)
        >>> circle.at(torch.tensor([math.pi, 0.0])).round(decimals=4).flatten().abs()
        tensor([0., 1., 0., 1.])
    """
    if not begin < end < math.inf:
        raise ValueError(f"end must be a finite time after begin = {begin:g}, got {end:g}")
    return collocate(field, start, end, begin, rtol, atol, training=torch.is_grad_enabled())


def collocate(
    field: nn.Module, start: Tensor, end: float, begin: float, rtol: float, atol: float, training: bool
) -> Dense:
    """`dense`, told whether the field shall keep the plan."""
    rtol, atol = effective(field, rtol, atol)
    with full_precision(start.device):
        y = coordinates(field, start, begin, rtol)
        wide = start.to(wide_dtype(start.device))
        key = (type(field), type(y), y.dtype, begin, rtol, atol)
        if training and defers(start.device):
            watch_optimizers()
            settle(wait=False)
        plan = kept_plan(field, key, end) if training else None
        kept, widened, strict = plan is not None, False, _AIMED
        failure: FlowError = FlowDiverged(begin, "no window settled")
        for _ in range(_ATTEMPTS):
            if (plan.wide if plan else widened) and y.dtype != wide.dtype:
                y = coordinates(field, start, begin, 0.0)
            if plan is None:
                try:
                    edges = plan_windows(y, begin, end, strict * rtol, strict * atol)
                except FlowDiverged as error:
                    if y.dtype == wide.dtype:
                        raise
                    failure, widened = error, True  # it may be the rounding of late times
                    continue
                plan = Plan(edges, strict, widened)
                if training:
                    keep_plan(field, key, plan)
            windows = tiled(tuple(plan.until(end)), windows_in_flight(start.device), y.dtype, start.device)
            counts = plan.forward if len(plan.forward) >= len(windows) else None
            tighter, near = 0.1, False
            try:
                returned: list[Tensor] = []
                velocities = swept(y, windows, plan, counts, rtol, atol, returned)
            except NoConvergence as error:
                failure = FlowDiverged(error.time, "the sweeps of collocation did not settle")
            else:
                dtype = torch.promote_types(torch.float32, start.dtype)
                solution = Dense(windows, wide, velocities, dtype, end, returned)
                errors = _error(y, windows, solution.edge_values, velocities.detach(), rtol, atol)
                if kept and plan.spread is not None and defers(start.device):
                    _judge_later(plan, windows.edges, errors, _allowed(plan, rtol))
                    return solution
                total = float(errors.sum(0).max())
                if plan.spread is None and (training or total > _unseen(rtol)) and total <= 2 * _MOST:
                    found = global_error(field, start.detach(), solution, rtol, atol)
                    plan.spread = max(found / max(total, _LEAST), _FADING)
                    if training or found > _ERROR:
                        plan.amplification = amplification(field, start.detach(), solution)
                    if training and start.dtype != wide.dtype:
                        warn_if_sensitive(plan.amplification, end, rtol)
                allowed = _allowed(plan, rtol)
                if total <= allowed:
                    return solution
                tighter = min(max(allowed / (2 * total), 0.01), 0.5)
                near = total <= 2 * allowed
                time = windows.edges[int(errors.amax(1).argmax()) + 1]
                failure = _failure(time, total)
            if counts is not None:
                plan.forward, plan.reserve = [], 1  # the same windows may take more sweeps
                continue
            if kept:
                kept = False  # it was made for other weights
            elif near and strict == _AIMED:
                strict /= 2
            elif y.dtype != wide.dtype:
                # What float32 rounds away, no shorter windows bring back.
                widened, strict = True, _AIMED
            else:
                strict *= tighter
            plan = None
    raise failure


def _judge_later(plan: Plan, edges: list[float], errors: Tensor, allowed: float) -> None:
    """Have the errors (n, rows) of a kept plan judged when they are there."""

    def judge(numbers: list[float]) -> FlowError | None:
        total, worst = numbers
        if total <= _SPARE * allowed:
            return None
        plan.life = 0
        return None if total <= allowed else _failure(edges[int(worst) + 1], total)

    defer(torch.stack((errors.sum(0).max(), errors.amax(1).argmax().to(errors.dtype))), judge)


def _failure(time: float, error: float) -> FlowError:
    """What a solve whose estimated error is too large raises."""
    if math.isfinite(error):
        return FlowInaccurate(time, error)
    return FlowDiverged(time, "NaN or infinity in p")


def _allowed(plan: Plan, rtol: float) -> float:
    """The estimated error of a whole solve, in tolerances, that is accepted of a plan."""
    if plan.spread is None:
        return _unseen(rtol)
    roundings = _ROUNDINGS * _ROUNDING / max(rtol, _ROUNDING)
    if plan.amplification > _SATURATED:
        return min(_MOST, _ERROR / plan.amplification + roundings)
    return min(_MOST, (_ERROR + roundings * plan.amplification) / plan.spread)


def _unseen(rtol: float) -> float:
    """The estimated error, in tolerances, that is accepted whatever the flow makes of it."""
    low, high = _UNSEEN
    return min(high, max(low, _ROUNDINGS * _ROUNDING / rtol))


def effective(field: nn.Module, rtol: float, atol: float) -> tuple[float, float]:
    """The tolerances that a field is solved with, stricter where it has kinks."""
    strict = _KINKED if is_smooth(field) is False else 1.0
    return strict * rtol, strict * atol


def swept(
    y: Coordinates,
    windows: Windows,
    plan: Plan,
    counts: list[int] | None,
    rtol: float,
    atol: float,
    returned: list[Tensor],
) -> Tensor:
    """dp/dt at all nodes (n, N, rows, dim), with its gradient; `returned` is that of the `Dense` of it."""
    part = _SWEPT_FORWARD * plan.strict
    with torch.no_grad():
        states, taken = forward_sweeps(y, windows, part * rtol, part * atol, counts)
    if counts is None:
        plan.forward = [sweeps + plan.reserve for sweeps in taken]
    if torch.is_grad_enabled():
        f = windows.by_nodes(y.parametric, states)
        arguments = (y, windows, plan, states, rtol, returned, y.start, f)
        states = _Collocation.apply(*arguments)  # type: ignore[no-untyped-call]
    return windows.by_nodes(y.read, states)


def windows_in_flight(device: torch.device) -> int:
    """How many windows are swept together.

    A window that runs ahead takes a fourth more sweeps. A device with many cores does the larger product in
    the same time; a CPU does not, at widths from 128 (docs/performance.md).

    Example:
        >>> windows_in_flight(torch.device("cpu"))
        1
    """
    return 1 if device.type == "cpu" else 8


@torch.no_grad()
def _error(
    y: Coordinates, windows: Windows, edges: Tensor, velocities: Tensor, rtol: float, atol: float
) -> Tensor:
    """The estimated errors (n, rows) that arise in the windows, relative to the tolerance.

    The field itself is evaluated once more, at the last node of every window, on the polynomial's
    value there: what is missing at the velocity is what the sweeps left.
    """
    to_last = gauss(NODES, velocities.device, velocities.dtype).quadrature[-1]
    last = torch.matmul(to_last, velocities.flatten(2)).view_as(velocities[:, -1])
    p = edges[:-1].to(velocities.dtype) + windows.lengths.view(-1, 1, 1) * last
    missing = norms(y.field(windows.times[:, -1], p) - velocities[:, -1])
    error = windows.lengths.unsqueeze(1) * missing + truncation(windows.lengths, velocities)
    return (error / (rtol * norms(p)).clamp(min=atol)).nan_to_num(nan=math.inf)


def _judge_backward_later(plan: Plan, left: Tensor) -> None:
    """Have what the kept numbers of backward sweeps left judged when it is there."""

    def judge(numbers: list[float]) -> FlowError | None:
        (change,) = numbers
        if change <= _SPARE:
            return None
        plan.backward.clear()
        if change <= _SERVES:
            return None
        return FlowDiverged(plan.edges[0], "in the backward pass: the sweeps that were enough before are not")

    defer(left.reshape(1), judge)


class _Collocation(torch.autograd.Function):
    """The states at the nodes as the function of y(0) and f that the collocation equations imply.

    The value of f is not looked at: the states solve the equations already.
    """

    @staticmethod
    def forward(
        ctx: Any,
        y: Coordinates,
        windows: Windows,
        plan: Plan,
        states: Tensor,
        rtol: float,
        returned: list[Tensor],
        start: Tensor,
        f: Tensor,
    ) -> Tensor:
        ctx.y, ctx.windows, ctx.plan, ctx.rtol, ctx.returned = y, windows, plan, rtol, returned
        ctx.save_for_backward(states)
        return states.view_as(states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        (states,) = ctx.saved_tensors
        plan, arguments = ctx.plan, (ctx.y, ctx.windows, states, cotangents[0])
        rtol = _SWEPT_BACKWARD * ctx.rtol
        overflow = ~torch.stack([*ctx.returned, states.new_zeros(()).to(ctx.y.start)]).isfinite().all()
        ctx.returned.clear()
        with full_precision(states.device):
            if len(states) in plan.backward:
                start, f, _, left = backward_sweeps(*arguments, rtol, plan.backward[len(states)])
                assert left is not None
                if defers(states.device):
                    _judge_backward_later(plan, left.masked_fill(overflow, 0.0))
                    return *6 * (None,), start, f
                if float(left) <= _SERVES:
                    return *6 * (None,), start, f
            if bool(overflow):
                # As it may with a loss scale that is too large, which is found out by these.
                return *6 * (None,), *(torch.full_like(x, torch.nan) for x in (ctx.y.start, states))
            try:
                start, f, taken, _ = backward_sweeps(*arguments, rtol)
            except NoConvergence as error:
                raise FlowDiverged(error.time, f"in the backward pass: {error}") from error
            plan.backward[len(states)] = [sweeps + defers(states.device) for sweeps in taken]
        return *6 * (None,), start, f
