"""The collocation solver: mesh, iterations, error estimate, and other attempts if the error is too large."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from floater.flow.autograd import outside_inference_mode
from floater.flow.collocation.defect import Solved
from floater.flow.collocation.error_control import (
    ATTEMPTS,
    CHANGE,
    Attempt,
    Outcome,
    bound,
    interval_errors,
    judge,
    measure,
    needs_measure,
    unresolved_errors,
)
from floater.flow.collocation.fixed_point import NotConverged, solve_states
from floater.flow.collocation.formulation import Formulation, formulate
from floater.flow.collocation.implicit_gradient import differentiable_velocities
from floater.flow.collocation.mesh import Mesh, mesh_of
from floater.flow.collocation.mesh_selection import NoMesh, Stiff, choose_edges
from floater.flow.collocation.newton import solve_velocities
from floater.flow.collocation.plan import Plan, SolverState
from floater.flow.collocation.solution import Solution
from floater.flow.collocation.state_form import StateForm
from floater.flow.dynamics import check_problem
from floater.flow.errors import FlowDiverged, FlowError, FlowInaccurate
from floater.flow.precision import full_precision, wide_dtype
from floater.flow.stiffness import failure as stiff_or_divergent
from floater.flow.units import KINKED


@outside_inference_mode
def solve_dense(
    field: nn.Module,
    start: Tensor,
    end: float,
    *,
    begin: float = 0.0,
    rtol: float = 1e-6,
    atol: float = 1e-6,
    state: SolverState | None = None,
) -> Solution:
    """Solve dp/dt = h(t, p) over a span by collocation, parallel in time.

    Source: Gauss-Legendre collocation (Hairer, Norsett, Wanner, "Solving Ordinary Differential Equations I",
    1993, section II.7) with eight nodes an interval, whose equations are solved by fixed-point iteration,
    over several intervals at once where that pays. An `MLPField` is solved in its preactivations, where one
    product of an evaluation replaces two. The gradient is that of the discrete solution, by the implicit
    function theorem; it cannot be differentiated again. `docs/design/collocation.md` has the equations.

    The intervals' lengths follow from the decay of their Legendre coefficients. A `state` keeps them for the
    next solve; a solve without one depends on nothing but its arguments. Every solve estimates the error of
    its iterations and of its polynomials; on a new mesh it is measured, from the defect of the polynomials. A
    new mesh is selected where the error is above five tolerances, and above ten
    roundings of the start to float32 amplified by the flow. The arithmetic is float64 where float32 cannot
    hold `rtol` or fails to meet it. A field whose `smooth` is false is solved to a tenth of the tolerance.

    Where the fixed-point iteration would take intervals much shorter than the tolerance requires, the field
    is stiff, and the equations are solved by Newton's method in float64, with derivatives of the field by
    autograd: for rows x (8 dim)^2 up to 2^23.

    With a new mesh for float32 vectors with gradients, the effect of a start a little apart is also computed:
    where the flow amplifies the last float32 bit to more than ten times `rtol`, it warns (`FlowSensitive`).

    Args:
        field: Any module with `forward(t, p)`: scalar t, p (rows, dim), returns (rows, dim). One
            that cannot be evaluated under `torch.vmap` is evaluated node by node.
        start: p at time `begin` (rows, dim).
        end: The last time, after `begin`.
        begin: The first time.
        rtol: Tolerance of the Euclidean norm of the error of a row, relative to that of the row.
        atol: The least tolerance.
        state: State of earlier solves of this field, which this one updates.

    Returns:
        The solution.

    Raises:
        TypeError: if the field is not a module, the start is not a tensor, or `end` is not a number.
        ValueError: if `end` is not after `begin`, or the start is not finite or not (rows, dim).
        FlowDiverged: if p becomes infinite or NaN, or intervals vanish or are too many.
        FlowStiff: if the field is stiff, so that intervals are too many, and too large for Newton's method.
        FlowInaccurate: if no mesh meets the tolerance.
        FlowTransformError: under `torch.vmap` or a transform of `torch.func`.

    Example:
        >>> from floater.flow import SinusoidField
        >>> field = SinusoidField(2)
        >>> circle = solve_dense(field, field.start()[None], 7.0)
        >>> circle.at(torch.tensor([math.pi, 0.0])).round(decimals=4).flatten().abs()
        tensor([0., 1., 0., 1.])
    """
    check_problem(field, start)
    if not isinstance(end, int | float):
        raise TypeError(f"end must be a number, got {type(end).__name__}")
    if not begin < end < math.inf:
        raise ValueError(f"end must be a finite time after begin = {begin:g}, got {end:g}")
    state = SolverState() if state is None else state
    if getattr(field, "smooth", None) is False:
        rtol, atol = KINKED * rtol, KINKED * atol
    wide = wide_dtype(start.device)
    failure: FlowError
    with full_precision(start.device):
        form = formulate(field, start, begin, rtol)
        problem = f"{type(field)} {type(form)} {form.dtype} {begin} {rtol} {atol}"
        plan = state.use(problem, end)
        if plan is not None and plan.implicit:
            form = form.implicit_form(start)
        if plan is None:
            check_finite(start)
            attempt = Attempt(new_mesh=True)
        else:
            known_iterations = not plan.implicit and len(plan.forward) >= len(plan.until(end)) - 1
            attempt = Attempt(new_mesh=False, known_iterations=known_iterations, wide=plan.wide)
        for _ in range(ATTEMPTS):
            if attempt.wide and form.dtype != wide and not form.implicit:
                form = formulate(field, start, begin, 0.0)
            try:
                if plan is None:
                    factor = attempt.safety_factor
                    tolerances = factor * rtol, factor * atol
                    try:
                        edges = choose_edges(form, start, begin, end, *tolerances)
                    except Stiff:
                        form, attempt = form.implicit_form(start), replace(attempt, wide=True)
                        edges = choose_edges(form, start, begin, end, *tolerances)
                    plan = Plan(edges, factor, attempt.wide, implicit=form.implicit)
                    state.problem, state.plan = problem, plan
                counts = plan.forward if attempt.known_iterations else None
                solution, solved, error, time, state.largest = _solve_on(
                    plan, counts, form, start, end, rtol, atol
                )
            except FlowDiverged as diverged:
                outcome, tighter, failure = Outcome.NO_MESH, 1.0, diverged
            except NotConverged as stuck:
                outcome, tighter = Outcome.NOT_CONVERGED, 0.1
                failure = FlowDiverged(stuck.time, "the iterations of collocation did not converge")
            else:
                if needs_measure(plan, error, rtol):
                    measure(plan, field, form, start, solution, solved, error, rtol, atol)
                accepted = bound(plan, rtol)
                outcome, tighter = judge(error, accepted)
                if outcome is Outcome.MET:
                    if not torch.is_grad_enabled():
                        return solution
                    # Only the last attempt saves tensors, so that a checkpoint, which starts from the mesh
                    # that this solve kept, saves as many when it runs again.
                    mesh, states, velocities, _ = solved
                    return solution.with_gradients(
                        differentiable_velocities(form, mesh, plan, states, rtol, velocities)
                    )
                failure = FlowInaccurate(time, error / accepted)
                if not math.isfinite(error):
                    failure = FlowDiverged(time, "NaN or infinity in p")
            following = attempt.after(outcome, tighter)
            if following is None:
                break
            if plan is not None and attempt.known_iterations:
                # The same mesh may take more iterations than it did. What happened once may happen again,
                # hence one in reserve from now on.
                plan.forward, plan.reserve = [], 1
            else:
                plan = None
            attempt = following
    if isinstance(failure, NoMesh):
        raise stiff_or_divergent(
            field, failure.time, failure.p, span=end - begin, reason=failure.reason
        ) from failure
    raise failure


def _solve_on(
    plan: Plan,
    counts: list[int] | None,
    form: Formulation,
    start: Tensor,
    end: float,
    rtol: float,
    atol: float,
) -> tuple[Solution, Solved, float, float, float]:
    """Solve on the mesh of a plan.

    Returns:
        The solution, its values at the nodes, its estimated error in tolerances, the time around which
        most of the error arises, and a bound of the norms of rows.
    """
    depth = 1 if form.implicit else pipeline_depth(start.device)
    mesh = mesh_of(plan.until(end), depth, form.dtype, start.device)
    change, velocities = CHANGE * plan.safety_factor, None
    with torch.no_grad():
        if isinstance(form, StateForm) and form.implicit:
            states, velocities = solve_velocities(
                form, mesh, plan.safety_factor * rtol, plan.safety_factor * atol
            )
        else:
            states, iterations = solve_states(form, mesh, change * rtol, change * atol, counts)
            if counts is None:
                plan.forward = [count + plan.reserve for count in iterations]
        if velocities is None:
            velocities = mesh.at_nodes(form.velocity, states)
    dtype = torch.promote_types(torch.float32, start.dtype)
    solution = Solution(mesh, start.to(wide_dtype(start.device)), velocities, dtype, end)
    errors = interval_errors(form, mesh, solution.edge_values, velocities, rtol, atol)
    # All numbers are read from the device at once, as each reading waits for all operations before it.
    numbers = (
        errors.sum(0).max(),
        errors.amax(1).argmax(),
        form.steepest(mesh.times.flatten(), states.flatten(0, 1)),
        _largest(mesh, solution.edge_values, velocities),
    )
    error, worst, steepest, largest = torch.stack([number.to(errors.dtype) for number in numbers]).tolist()
    if not math.isfinite(error):
        check_finite(start)
    elif steepest > 1:
        errors = errors + unresolved_errors(form, mesh, states, solution.edge_values, rtol, atol)
        error, worst = float(errors.sum(0).max()), float(errors.amax(1).argmax())
    solved = Solved(mesh, states, velocities, solution.edge_values)
    return solution, solved, error, mesh.edges[int(worst) + 1], largest


def _largest(mesh: Mesh, edge_values: Tensor, velocities: Tensor) -> Tensor:
    """Return a bound of the norms of rows on the whole mesh.

    Within an interval a row moves by at most 2 of its lengths times the largest velocity at its nodes: the
    integrals of the eight polynomials of Lagrange add up to less than that.
    """
    longest = max(right - left for left, right in pairwise(mesh.edges))
    at_edges, at_nodes = (x.square().sum(-1).max().sqrt() for x in (edge_values, velocities))
    return at_edges + 2 * longest * at_nodes


def check_finite(start: Tensor) -> None:
    """Check that a start is finite.

    Raises:
        ValueError: if it is not.
    """
    if not bool(start.detach().isfinite().all()):
        raise ValueError("start must be finite, got NaN or infinity")


def pipeline_depth(device: torch.device) -> int:
    """Return the number of intervals that are iterated together.

    An interval that starts from a guess of its left edge takes more iterations. A device with many cores does
    the larger product in the same time; a CPU does not, at widths from 128 (docs/design/collocation.md).
    The depth on other devices was estimated from operation counts, not measured.

    Example:
        >>> pipeline_depth(torch.device("cpu"))
        1
    """
    return 1 if device.type == "cpu" else 8
