"""Error control: estimates of an error, the bound that they must meet, and what to try if they do not."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor, nn

from floater.flow.collocation.defect import Solved, solve_changes
from floater.flow.collocation.fixed_point import NotConverged, solve_states
from floater.flow.collocation.formulation import Formulation, formulate
from floater.flow.collocation.mesh import Mesh
from floater.flow.collocation.newton import solve_velocities
from floater.flow.collocation.plan import Plan
from floater.flow.collocation.quadrature import NODES, gauss_rule, truncation_error
from floater.flow.collocation.solution import Solution
from floater.flow.collocation.state_form import StateForm
from floater.flow.precision import full_precision, norms, wide_dtype

# The promise to the caller: an error of at most MOST tolerances, plus 20 roundings of the start to float32
# (2^-23) amplified by the flow, which no solver could avoid. Errors are counted in tolerances throughout.
MOST = 10.0
_ROUNDING = 2.0**-23
# A solve aims at half of the promise: the error of a kept plan is not measured again, only the sum of the
# estimates of its intervals is, and the ratio of the two changes with the weights.
_AIM, _ROUNDINGS = MOST / 2, 10.0
# Limits of the sum of estimates below which a new plan is not measured if no gradient is needed, as measuring
# takes half as long as a solve; between them the sum depends on the size of roundings.
_UNMEASURED = 0.1, 1.5
# Lower limits of the ratio of measured error to summed estimates, and of the sum itself in tolerances: a plan
# that is accurate by chance would otherwise allow later solves too much.
_FADING, _LEAST = 0.5, 0.05
# Above this condition number the perturbation has grown to the size of p itself and is saturated, so that the
# measured ratio is meaningless, and the worst case is assumed.
_SATURATED = 1e3

# The part of the tolerance that a first mesh is selected for; a quarter took 8 % more time, one missed the
# aim more often.
FIRST_SAFETY_FACTOR = 0.5
ATTEMPTS = 6

# Forward iterations end when their change is this many tolerances (times the safety factor): the remaining
# error is smaller by the contraction, 0.1 to 0.2, and the error estimate includes it.
CHANGE = 10.0

# Relative change of the start by which the condition number is measured: small enough for p to follow
# linearly, large enough for its effect to exceed the remaining error of the iterations.
_PERTURBATION = 2.0**-13
# The remaining error of the iterations, relative to the measured quantity.
_REMAINDER = 1e-2


class FlowSensitive(RuntimeWarning):
    """A flow amplifies the last float32 bit of its start to more than ten tolerances of the solve."""


class Outcome(Enum):
    """The ways in which an attempt at a solve can end."""

    MET = "the estimated error is within its bound"
    NO_MESH = "the intervals of the mesh vanished or were too many"
    NOT_CONVERGED = "an interval did not converge"
    NEARLY_MET = "the estimated error is above its bound, but not twice as large"
    MISSED = "the estimated error is more than twice its bound"


@dataclass(frozen=True)
class Attempt:
    """The assumptions of an attempt.

    Args:
        new_mesh: Whether the mesh is selected for this solve, not kept from another.
        known_iterations: Whether the numbers of iterations are taken from another solve on this mesh.
        safety_factor: The part of the tolerance that the mesh is selected for.
        wide: Whether the arithmetic is float64.
    """

    new_mesh: bool
    known_iterations: bool = False
    safety_factor: float = FIRST_SAFETY_FACTOR
    wide: bool = False

    def after(self, outcome: Outcome, tighter: float) -> Attempt | None:
        """Return the next attempt after this one failed; None if there is none.

        Assumptions are given up first, which costs no accuracy; then the tolerance of the mesh is tightened
        if the error is close to its bound, else float64 is tried, as no mesh restores what float32 rounds
        away; then the tolerance again.

        Args:
            outcome: The outcome of this attempt.
            tighter: The factor by which the estimated error decreases the safety factor.

        Example:
            >>> Attempt(new_mesh=True).after(Outcome.MISSED, 0.1).wide
            True
            >>> Attempt(new_mesh=True, wide=True).after(Outcome.MISSED, 0.1).safety_factor
            0.05
        """
        if outcome is Outcome.NO_MESH:  # it may be the rounding of late times to float32
            return None if self.wide else replace(self, wide=True)
        if self.known_iterations:
            return replace(self, known_iterations=False)
        if not self.new_mesh:  # the mesh was selected for other weights
            return replace(self, new_mesh=True)
        if outcome is Outcome.NEARLY_MET and self.safety_factor == FIRST_SAFETY_FACTOR:
            return replace(self, safety_factor=self.safety_factor / 2)
        if not self.wide:
            return Attempt(new_mesh=True, wide=True)
        return replace(self, safety_factor=self.safety_factor * tighter)


def judge(error: float, bound: float) -> tuple[Outcome, float]:
    """Return the outcome of an estimated error, and the factor of the tolerance that would meet its bound.

    Example:
        >>> judge(4.0, 1.0)
        (<Outcome.MISSED: 'the estimated error is more than twice its bound'>, 0.125)
    """
    if error <= bound:
        return Outcome.MET, 1.0
    # Twice as tight as the excess, as estimates are only roughly proportional to it; at most a hundred times.
    tighter = min(max(bound / (2 * error), 0.01), 0.5)
    return Outcome.NEARLY_MET if error <= 2 * bound else Outcome.MISSED, tighter


@torch.no_grad()
def unresolved_errors(
    form: Formulation, mesh: Mesh, states: Tensor, edges: Tensor, rtol: float, atol: float
) -> Tensor:
    """Bound the errors of changes between nodes, in tolerances.

    A unit of an MLP whose argument moves far between two nodes switches at a time that they do not resolve,
    and two of them make a pulse that no node samples. The velocity between the nodes then differs from that
    at the nodes by at most the change of its units. The same applies to a unit whose kink lies between two
    nodes.

    Args:
        form: The formulation.
        mesh: The mesh.
        states: y at its nodes (n, N, rows, width).
        edges: p at its edges (n + 1, rows, dim).
        rtol, atol: The tolerances.

    Returns:
        The errors (n, rows).
    """
    # the beginning, all nodes and the end
    end = mesh.times.new_tensor(mesh.edges[-1:])
    times = torch.cat((mesh.times.new_tensor(mesh.edges[:1]), mesh.times.flatten(), end))
    last = form.state(end, edges[-1:].to(form.dtype))
    successive = torch.cat((form.start[None].to(form.dtype), states.flatten(0, 1), last))
    gaps = times.diff().unsqueeze(1) * form.jumps(times, successive)[1]
    # The gap before the first node of an interval belongs to it, that after the last node to the last
    # interval.
    error = gaps[:-1].view(len(mesh), NODES, -1).sum(1)
    error[-1] += gaps[-1]
    return error / (rtol * norms(edges[1:])).clamp(min=atol)


@torch.no_grad()
def interval_errors(
    form: Formulation, mesh: Mesh, edges: Tensor, velocities: Tensor, rtol: float, atol: float
) -> Tensor:
    """Estimate the errors that arise in the intervals, in tolerances.

    An error is the sum of the truncation error and of the remaining error of the iterations. For the latter
    the field is evaluated at the last node, on the polynomial's value there, and compared with the
    polynomial's velocity.

    Args:
        form: The formulation.
        mesh: The mesh.
        edges: p at its edges (n + 1, rows, dim).
        velocities: dp/dt at its nodes (n, N, rows, dim).
        rtol, atol: The tolerances.

    Returns:
        The errors (n, rows), infinite where p is NaN.
    """
    to_last = gauss_rule(NODES, velocities.device, velocities.dtype).quadrature[-1]
    last = torch.matmul(to_last, velocities.flatten(2)).view_as(velocities[:, -1])
    p = edges[:-1].to(velocities.dtype) + mesh.lengths.view(-1, 1, 1) * last
    residual = norms(form.field(mesh.times[:, -1], p) - velocities[:, -1])
    error = mesh.lengths.unsqueeze(1) * residual + truncation_error(mesh.lengths, velocities)
    return (error / (rtol * norms(p)).clamp(min=atol)).nan_to_num(nan=math.inf)


def measure(
    plan: Plan,
    field: nn.Module,
    form: Formulation,
    start: Tensor,
    solution: Solution,
    solved: Solved,
    estimated: float,
    rtol: float,
    atol: float,
) -> None:
    """Measure the error of a new plan, and for gradients or a large error its condition number.

    Warn if rounding the start to float32 moves p by more than ten times `rtol`, or ten roundings.

    Args:
        plan: The plan, which keeps the result.
        field: The field.
        form: Its formulation.
        start: p at the beginning (rows, dim).
        solution: The solution by the plan.
        solved: Its values at the nodes.
        estimated: The sum of the solution's estimated errors.
        rtol, atol: The tolerances.
    """
    learning = torch.is_grad_enabled()
    problem = field, form, start.detach(), solution, solved, rtol, atol
    error, plan.condition_number = error_and_condition(*problem, condition=learning or estimated > _AIM)
    if error > _AIM and not plan.condition_number:
        _, plan.condition_number = error_and_condition(*problem, condition=True)
    plan.error_ratio = max(error / max(estimated, _LEAST), _FADING)
    narrow = learning and start.dtype != wide_dtype(start.device)
    if narrow and plan.condition_number * _ROUNDING > 10 * max(rtol, _ROUNDING):
        warnings.warn(
            f"a change of this flow's start grows about {plan.condition_number:.1g} times up to t = "
            f"{solution.end:g}, so float32 starts and weights determine p no better, whatever the solver; "
            "smaller weights (floater.flow.init_small_), a smaller delta or time_scale, or a shorter span "
            "would",
            FlowSensitive,
            stacklevel=2,
        )


@torch.no_grad()
def error_and_condition(
    field: nn.Module,
    form: Formulation,
    start: Tensor,
    solution: Solution,
    solved: Solved,
    rtol: float,
    atol: float,
    condition: bool,
) -> tuple[float, float]:
    """Return the largest error at the edges, in tolerances, and the condition number, 0 if not requested.

    They are those of `global_error` and `condition_number`, from the equations of small changes where these
    hold.
    """
    perturbation = _PERTURBATION * start if condition else None
    changes = None if form.implicit else solve_changes(field, form, solved, perturbation)
    if changes is None:
        error = global_error(field, start, solution, rtol, atol, form.implicit)
        return error, condition_number(field, start, solution, form.implicit) if condition else 0.0
    size = norms(solution.edge_values)
    error = _largest(norms(changes[0]) / (rtol * size[1:]).clamp(min=atol))
    if not condition:
        return error, 0.0
    moved = torch.cat((norms(_PERTURBATION * start).to(size).unsqueeze(0), norms(changes[1])))
    return error, _largest(moved / size.clamp(min=1)) / _PERTURBATION


def _largest(x: Tensor) -> float:
    return float(x.max().nan_to_num(nan=math.inf))


def needs_measure(plan: Plan, estimated: float, rtol: float) -> bool:
    """Return whether the error of a plan is to be measured before its estimates are compared with a bound."""
    wanted = torch.is_grad_enabled() or estimated > unmeasured_bound(rtol)
    # Above twice the promise the attempt fails whatever is measured.
    return plan.error_ratio is None and wanted and estimated <= 2 * MOST


def bound(plan: Plan, rtol: float) -> float:
    """Return the sum of estimated errors, in tolerances, that is accepted of a plan."""
    if plan.error_ratio is None:
        return unmeasured_bound(rtol)
    roundings = _ROUNDINGS * _ROUNDING / max(rtol, _ROUNDING)
    if plan.condition_number > _SATURATED:
        return min(MOST, _AIM / plan.condition_number + roundings)
    return min(MOST, (_AIM + roundings * plan.condition_number) / plan.error_ratio)


def unmeasured_bound(rtol: float) -> float:
    """Return the sum of estimated errors, in tolerances, that is accepted without a measurement."""
    low, high = _UNMEASURED
    return min(high, max(low, _ROUNDINGS * _ROUNDING / rtol))


@torch.no_grad()
def condition_number(field: nn.Module, start: Tensor, solution: Solution, implicit: bool = False) -> float:
    """Return the change of p divided by the relative change of the start that causes it.

    Args:
        field: The field.
        start: p at the beginning (rows, dim).
        solution: The solution from there.
        implicit: Whether to solve by Newton's method.

    Returns:
        The largest ratio over rows and edges of intervals, with changes of p relative to max(1, |p|). Larger
        changes of the start may grow less, as trajectories of a bounded flow stay close: read 1e4 as "at
        least 1e4".

    Example:
        >>> from floater.flow import SinusoidField, solve_dense
        >>> field = SinusoidField(2)
        >>> circle = solve_dense(field, field.start()[None], 3.0)
        >>> round(condition_number(field, field.start()[None], circle), 2)  # the start itself moves
        1.0
    """
    tolerances = _REMAINDER * _PERTURBATION, _REMAINDER**2 * _PERTURBATION
    perturbed = start.to(wide_dtype(start.device)) * (1 + _PERTURBATION)
    moved = solve_edges(field, perturbed, solution.edges, *tolerances, implicit)
    if moved is None:
        return math.inf
    p = solution.edge_values
    return float((norms(moved - p) / norms(p).clamp(min=1)).max()) / _PERTURBATION


@torch.no_grad()
def global_error(
    field: nn.Module, start: Tensor, solution: Solution, rtol: float, atol: float, implicit: bool = False
) -> float:
    """Measure the error at the edges, in tolerances, by a solution with intervals half as long.

    At order 16 the error of that reference is negligible in comparison.

    Args:
        field: The field.
        start: p at the beginning (rows, dim).
        solution: The solution from there.
        rtol: The tolerance relative to the norm of p.
        atol: The least tolerance.
        implicit: Whether to solve by Newton's method.

    Returns:
        The largest error over rows and edges.

    Example:
        >>> from floater.flow import SinusoidField, solve_dense
        >>> field = SinusoidField(2)
        >>> circle = solve_dense(field, field.start()[None], 3.0, rtol=1e-5)
        >>> global_error(field, field.start()[None], circle, 1e-5, 1e-5) < 1
        True
    """
    edges = torch.tensor(solution.edges, dtype=torch.float64, device="cpu")
    halved = torch.stack((edges[:-1], edges[:-1].lerp(edges[1:], 0.5)), dim=1).flatten().tolist()
    p = solution.edge_values
    tolerances = _REMAINDER * rtol, _REMAINDER * atol
    exact = solve_edges(field, start, [*halved, solution.edges[-1]], *tolerances, implicit)
    if exact is None:
        return math.inf
    return float((norms(exact[::2] - p) / (rtol * norms(p)).clamp(min=atol)).max())


def solve_edges(
    field: nn.Module, start: Tensor, edges: list[float], rtol: float, atol: float, implicit: bool = False
) -> Tensor | None:
    """Return p at the edges of intervals, in the widest arithmetic; None if the solve does not converge."""
    with full_precision(start.device):
        form = formulate(field, start, edges[0], 0.0)
        if implicit:
            form = form.implicit_form(start)
        mesh = Mesh(edges, 1, form.dtype, start.device)
        least = 8 * torch.finfo(form.dtype).eps
        try:
            if isinstance(form, StateForm) and form.implicit:
                _, velocities = solve_velocities(form, mesh, max(rtol, least), max(atol, least))
                return mesh.edge_values(form.start, velocities)
            states, _ = solve_states(form, mesh, max(rtol, least), max(atol, least))
        except NotConverged:
            return None
        return mesh.edge_values(start.to(form.start), mesh.at_nodes(form.velocity, states))
