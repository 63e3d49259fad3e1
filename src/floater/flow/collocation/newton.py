"""Newton's method for the collocation equations of a stiff field, one interval after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from floater.flow.collocation.fixed_point import NotConverged
from floater.flow.collocation.mesh import Mesh
from floater.flow.collocation.quadrature import NODES
from floater.flow.collocation.state_form import LinearizedStates, StateForm
from floater.flow.linear_systems import lu_factors
from floater.flow.precision import norms

ITERATIONS = 10
"""Iterations above which an interval is not followed by a longer one; twice as many are the limit. Few are
needed, except where rows depend on each other."""

# Elements of the matrices of all rows of an interval: 64 MB in float64, and a second to factorize.
_LARGEST = 2**23
# Iterations end when the displacements change by this part of a tolerance, or by rounding.
_CHANGE, _ROUNDINGS = 0.01, 16.0
# An iteration that reduces the change by less gets new Jacobians.
_SLOW = 0.1


def is_feasible(rows: int, width: int) -> bool:
    """Return whether the linear systems of an interval are small enough to be solved.

    Example:
        >>> is_feasible(18, 64), is_feasible(18, 512)
        (True, False)
    """
    return rows * (NODES * width) ** 2 <= _LARGEST


class _Factors:
    """The factors of I - h (A x J), one matrix for each row.

    Args:
        quadrature: h A (N, N).
        jacobians: J at the nodes (N, rows, width, width).
    """

    def __init__(self, quadrature: Tensor, jacobians: Tensor) -> None:
        nodes, rows, width, _ = jacobians.shape
        coupled = torch.einsum("ij,irab->riajb", quadrature, jacobians).reshape(rows, nodes * width, -1)
        identity = torch.eye(nodes * width, dtype=coupled.dtype, device=coupled.device)
        # A singular matrix gives infinite or NaN solutions, which do not count as converged.
        self._factors, self._pivots = lu_factors(identity - coupled)

    def solve(self, right: Tensor, *, transposed: bool = False) -> Tensor:
        """Return the solution of the systems, or of the transposed ones; both (N, rows, width)."""
        nodes, rows, width = right.shape
        flat = right.transpose(0, 1).reshape(rows, nodes * width, 1)
        result: Tensor = torch.linalg.lu_solve(self._factors, self._pivots, flat, adjoint=transposed)
        return result.view(rows, nodes, width).transpose(0, 1)


def solve_interval(
    form: StateForm, left: Tensor, times: Tensor, quadrature: Tensor, guess: Tensor, rtol: float, atol: float
) -> tuple[Tensor | None, int]:
    """Solve K = f(p + h A K) for the velocities K at the nodes of an interval.

    The unknowns are the velocities, not the states, because f amplifies the rounding of a state by the rate
    of the fastest component.

    Args:
        form: The formulation.
        left: p at the left edge (rows, width).
        times: The nodes (N,).
        quadrature: h A (N, N).
        guess: A first guess of K (N, rows, width).
        rtol: Tolerance of a row of p, relative to the row.
        atol: The least tolerance.

    Returns:
        K, None if the iteration does not converge; and the number of iterations.
    """
    velocities, before, factors = guess, 0.0, None
    for iteration in range(1, 2 * ITERATIONS + 1):
        states = left + _integrals(quadrature, velocities)
        if factors is None:
            linear = form.linearize(times.unsqueeze(0), states.unsqueeze(0))
            f, factors = linear.value(0), _Factors(quadrature, linear.jacobian(0))
        else:
            f = form.state_term(times, states)
        correction = factors.solve(f - velocities)
        velocities = velocities + correction
        size = norms(states).amax(0)
        least = _ROUNDINGS * torch.finfo(states.dtype).eps * size
        allowed = torch.maximum(_CHANGE * (rtol * size).clamp(min=atol), least)
        change = float((norms(_integrals(quadrature, correction)).amax(0) / allowed).max())
        if change < 1:
            return velocities, iteration
        if not change < torch.inf:
            break
        if iteration > 1 and change > _SLOW * before:
            factors = None
        before = change
    return None, iteration


def solve_velocities(form: StateForm, mesh: Mesh, rtol: float, atol: float) -> tuple[Tensor, Tensor]:
    """Solve the collocation equations of all intervals.

    Args:
        form: The formulation.
        mesh: The mesh, of pipeline depth 1.
        rtol, atol: See `solve_interval`.

    Returns:
        States and velocities at the nodes (n, N, rows, width).

    Raises:
        NotConverged: if an interval does not converge.
    """
    left = form.start.detach()
    states = left.new_empty(len(mesh), NODES, *left.shape)
    velocities = torch.empty_like(states)
    guess = form.state_term(mesh.times[0, :1], left.unsqueeze(0)).expand(NODES, *left.shape)
    for w in range(len(mesh)):
        if w > 0:
            guess = _integrals(mesh.extrapolation[w], velocities[w - 1])
        quadrature = mesh.coupling[w]
        solved, _ = solve_interval(form, left, mesh.times[w], quadrature, guess, rtol, atol)
        if solved is None:
            raise NotConverged(mesh.edges[w], 2 * ITERATIONS)
        velocities[w], states[w] = solved, left + _integrals(quadrature, solved)
        left = left + _integrals(mesh.weights[w : w + 1], solved)[0]
    return states, velocities


def solve_adjoint(
    linear: LinearizedStates, mesh: Mesh, cotangent: Tensor, rtol: float
) -> tuple[Tensor, Tensor]:
    """Solve the adjoint equations from the last interval to the first: see `fixed_point.solve_adjoint`.

    The systems of an interval are linear; the first correction solves them where rows do not depend on each
    other, and further ones follow by the exact products with the Jacobian until they are negligible.

    Args:
        linear: The linearization at the states.
        mesh: The mesh, of pipeline depth 1.
        cotangent: g, the cotangents of the states from outside (n, N, rows, width).
        rtol: Tolerance, relative to the cotangents.

    Returns:
        The cotangent of the start (rows, width), and those of the velocities (n, N, rows, width).

    Raises:
        NotConverged: if the corrections do not vanish.
    """
    right, result = torch.zeros_like(cotangent[0, 0]), torch.empty_like(cotangent)
    for w in reversed(range(len(mesh))):
        transposed = mesh.coupling[w].T
        factors = _Factors(mesh.coupling[w], linear.jacobian(w))
        base = mesh.weights[w].view(-1, 1, 1) * right + _integrals(transposed, cotangent[w])
        c = torch.zeros_like(base)
        for _ in range(2 * ITERATIONS):
            back = linear.vjp(slice(w, w + 1), c.unsqueeze(0))[0]
            correction = factors.solve(base + _integrals(transposed, back) - c, transposed=True)
            c = c + correction
            if bool(norms(correction.flatten()) <= _CHANGE * rtol * norms(c.flatten())):
                break
        else:
            raise NotConverged(mesh.edges[w], 2 * ITERATIONS)
        result[w] = c
        right = right + (cotangent[w] + linear.vjp(slice(w, w + 1), c.unsqueeze(0))[0]).sum(0)
    return right, result


def _integrals(matrix: Tensor, values: Tensor) -> Tensor:
    return torch.mm(matrix, values.flatten(1)).view(len(matrix), *values.shape[1:])
