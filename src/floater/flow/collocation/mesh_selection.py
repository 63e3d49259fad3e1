"""Selection of a mesh whose intervals all meet a tolerance and converge in a few iterations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from floater.flow.collocation import newton
from floater.flow.collocation.formulation import Formulation, rate
from floater.flow.collocation.mesh import GUESS_DEGREE
from floater.flow.collocation.quadrature import NODES, gauss_rule, truncation_error
from floater.flow.collocation.state_form import StateForm
from floater.flow.errors import FlowDiverged
from floater.flow.precision import norms

ITERATIONS = 9
"""Iterations of an interval that selection aims at. A longer interval contracts less with each iteration, so
that beyond some length fewer intervals take more evaluations in all."""

MAX_INTERVALS = 10_000
"""More would take minutes to select, and their states gigabytes."""

# Limits of the change of length from one interval to the next, as in any step size control. A rejected
# interval shrinks to the first at most, and one that did not converge to exactly that.
_SHRINK, _GROW = 0.3, 1.5
# The fraction of the proposed length that is taken, so that few intervals are rejected.
_CAUTION = 0.9
# The weight of the error of p compared with that of the state, so that meshes are chosen by the state
# where it moves with p; the sum over all intervals is checked after the solve.
_PART_OF_P = 0.5
# After every `_PATIENCE` trials, if as many more are to come, an implicit interval longer by `_LONGER` tests
# whether the field is stiff; `_LAST` successive trials too short for `MAX_INTERVALS` end the selection.
_PATIENCE, _LONGER, _LAST = 64, 10.0, 256
# The iteration contracts by 0.2 or less, so that a change of three tolerances leaves less than one.
_CHANGE = 3.0


class Stiff(RuntimeError):
    """The field is stiff: fixed-point iteration takes much shorter intervals than the tolerance requires."""


class NoMesh(FlowDiverged):
    """The intervals of a mesh vanish, or are more than it may have.

    Args:
        time: The time that the mesh reached.
        reason: Which of the two happened.
        p: Vectors there (rows, dim).
    """

    def __init__(self, time: float, reason: str, p: Tensor) -> None:
        super().__init__(time, reason)
        self.p = p


@torch.no_grad()
def choose_edges(
    form: Formulation, start: Tensor, begin: float, end: float, rtol: float, atol: float
) -> list[float]:
    """Choose the edges of a mesh by solving one interval after the other.

    The length of an interval is limited by its truncation error, by the rule of step size control
    h_new = 0.9 h (tolerance / error)^(1 / (N + 1)) (Hairer, Norsett, Wanner, "Solving Ordinary Differential
    Equations I", 1993, section II.4), and by the number of iterations, about `ITERATIONS`.

    Args:
        form: The formulation.
        start: p at the beginning (rows, dim).
        begin, end: The span of time.
        rtol: Tolerance of a row of the state, relative to the row.
        atol: The least tolerance.

    Returns:
        The edges, from begin to end.

    Raises:
        FlowDiverged: if intervals vanish or are too many.
        Stiff: if Newton's method would take much longer intervals.
    """
    rule = gauss_rule(NODES)
    quadrature = rule.quadrature.to(form.start.device, form.dtype)
    left, p, t, length = form.start.detach(), start.detach().to(form.start), begin, min(1.0, end - begin)
    edges, f, before = [begin], None, length
    short = 0
    for trial in range(MAX_INTERVALS):
        rest = end - t
        many = trial % _PATIENCE == _PATIENCE - 1 and rest > _PATIENCE * length and not form.implicit
        if many and _stiff(form, t, p, end, length, rtol, atol):
            raise Stiff
        short = short + 1 if rest > MAX_INTERVALS * length else 0
        if short > _LAST:
            break
        # The last intervals divide the rest equally: slightly longer ones instead of one more.
        step = rest / max(1, math.ceil(rest / length - 0.05)) if rest < 3 * length else length
        if step <= 1e-9 * max(abs(t), end - begin, 1e-300):
            raise NoMesh(t, "a collocation interval vanished", p)
        times = t + step * rule.nodes.to(left)
        if f is None:
            guess = rate(form, times[:1], left.to(form.dtype)[None]).expand(NODES, *left.shape)
        else:
            ratio = rule.evaluation(1 + step / before * rule.nodes, GUESS_DEGREE).to(f)
            guess = torch.mm(ratio, f.flatten(1)).view_as(f)
        if form.implicit:
            assert isinstance(form, StateForm)
            solved, iterations = newton.solve_interval(
                form, left, times, step * quadrature, guess, rtol, atol
            )
        else:
            solved, iterations = _one_interval(form, left, times, step, quadrature, guess, rtol, atol)
        if solved is None:
            length = _SHRINK * step
            continue
        state = left + step * (rule.weights.to(solved) @ solved.flatten(1)).view_as(left)
        nodes = left.to(solved) + step * torch.mm(quadrature, solved.flatten(1)).view_as(solved)
        velocities = solved if form.solves_p else form.velocity(times, nodes)
        p_end = p + step * (rule.weights.to(solved) @ velocities.flatten(1)).view_as(p)
        successive = torch.cat((left[None].to(solved), nodes, state[None].to(solved)))
        instants = torch.cat((times.new_tensor([t]), times, times.new_tensor([t + step])))
        gaps = instants.diff().unsqueeze(1)
        state_jumps, p_jumps = (gaps * x for x in form.jumps(instants, successive))
        error = _in_tolerances(step, solved, state_jumps.sum(0), state, rtol, atol)
        if not form.solves_p:
            # The state may not depend on p at all, as where W1 = 0. Where it does, its own error is the
            # larger.
            error = max(
                error, _PART_OF_P * _in_tolerances(step, velocities, p_jumps.sum(0), p_end, rtol, atol)
            )
        if not math.isfinite(error):
            length = _SHRINK * step
            continue
        factor = min(_GROW, max(_SHRINK, _CAUTION * max(error, 1e-12) ** (-1 / (NODES + 1))))
        if error > 1:
            length = factor * step
            continue
        left, p, f, before, t = state, p_end, solved, step, t + step
        edges.append(t)
        if rest - step <= 1e-9 * (end - begin):
            edges[-1] = end
            return edges
        # Newton's method contracts no better in shorter intervals.
        most = max(1.0, newton.ITERATIONS / iterations) if form.implicit else (ITERATIONS + 1) / iterations
        length = step * min(factor, most)
    raise NoMesh(t, f"{MAX_INTERVALS} intervals are not enough", p)


def _stiff(
    form: Formulation, begin: float, p: Tensor, end: float, length: float, rtol: float, atol: float
) -> bool:
    """Return whether an implicit interval that is much longer than `length` meets the tolerance at a time."""
    if not newton.is_feasible(*p.shape):
        return False
    implicit = form.implicit_form(p)
    rule, length = gauss_rule(NODES, p.device), min(_LONGER * length, end - begin)
    times = begin + length * rule.nodes
    guess = implicit.state_term(times[:1], p[None]).expand(NODES, *p.shape)
    quadrature = length * rule.quadrature.to(p)
    solved, _ = newton.solve_interval(implicit, p, times, quadrature, guess, rtol, atol)
    if solved is None:
        return False
    after = p + length * (rule.weights.to(p) @ solved.flatten(1)).view_as(p)
    return _in_tolerances(length, solved, torch.zeros_like(norms(p)), after, rtol, atol) <= 1


def _in_tolerances(length: float, f: Tensor, jumps: Tensor, after: Tensor, rtol: float, atol: float) -> float:
    """Return the error of an interval, of truncation and of jumps (rows,), in tolerances."""
    truncated = truncation_error(f.new_tensor([length]), f.unsqueeze(0)).squeeze(0)
    return float(((truncated + jumps) / (rtol * norms(after)).clamp(min=atol)).max())


def _one_interval(
    form: Formulation,
    left: Tensor,
    times: Tensor,
    length: float,
    quadrature: Tensor,
    guess: Tensor,
    rtol: float,
    atol: float,
) -> tuple[Tensor | None, int]:
    """Return velocities (N, rows, width) at the nodes, None if they do not converge, and the iterations."""
    f, base = guess, left.to(form.dtype)
    for iteration in range(1, 2 * ITERATIONS + 1):
        state = base + length * torch.mm(quadrature, f.flatten(1)).view_as(f)
        after = rate(form, times, state)
        change = length * norms((after - f)[-1])
        f = after
        if bool((change < _CHANGE * (rtol * norms(state[-1])).clamp(min=atol)).all()):
            return f, iteration
    return None, iteration
