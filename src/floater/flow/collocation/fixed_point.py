"""Fixed-point iterations over a mesh: the collocation equations, and the adjoint of their linearization."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from floater.flow.collocation.formulation import Formulation, Linearization, System
from floater.flow.collocation.mesh import Mesh
from floater.flow.precision import norms

MAX_ITERATIONS = 60
"""A mesh is selected for about nine; an iteration that has not converged in sixty contracts more slowly than
0.8."""


class NotConverged(RuntimeError):
    """The iteration over an interval does not converge, or it converges to NaN or infinity.

    Args:
        time: The left edge of the interval.
        iterations: The number of iterations.
    """

    def __init__(self, time: float, iterations: int = MAX_ITERATIONS) -> None:
        super().__init__(f"no convergence in {iterations} iterations near t = {time:g}")
        self.time = time


def solve_states(
    form: System, mesh: Mesh, rtol: float, atol: float, counts: Sequence[int] | None = None
) -> tuple[Tensor, list[int]]:
    """Solve Y = y(0) + Q f(Y) for the states at the nodes of all intervals.

    One iteration is one evaluation at all nodes of the W intervals in the pipeline. The first of them retires
    when its change falls below the tolerance; the next interval then enters with the extrapolated
    velocity polynomial of the one before it. The running state is wide.

    Args:
        form: The formulation, or another system.
        mesh: The mesh.
        rtol: Tolerance of the change of a row, relative to the row.
        atol: The least tolerance.
        counts: The number of iterations of each interval; None iterates until the change is small enough.

    Returns:
        y at the nodes (n, N, rows, width), and the number of iterations of each interval (n).

    Raises:
        NotConverged: if an interval does not converge in `MAX_ITERATIONS`.

    Example:
        >>> from floater.flow import ZeroField
        >>> from floater.flow.collocation.formulation import formulate
        >>> mesh = Mesh([0.0, 1.0], 1, torch.float32, torch.device("cpu"))
        >>> form = formulate(ZeroField(), torch.ones(1, 2), 0.0, 1e-6)
        >>> states, iterations = solve_states(form, mesh, 1e-6, 1e-6)
        >>> states.shape, iterations
        (torch.Size([1, 8, 1, 2]), [2])
    """
    left = form.start.detach()
    (rows, width), count = left.shape, mesh.nodes
    states = torch.empty(len(mesh), count, rows, width, dtype=form.dtype, device=left.device)
    # The part of f that does not depend on the state is integrated once, before the iterations.
    shift, step_shift = mesh.displacements(form.time_term(mesh.times.flatten()))
    f = form.state_term(mesh.times[0, :1], left.to(form.dtype).unsqueeze(0))
    f = f.view(1, -1).expand(mesh.depth * count, -1)
    least, iterations = 2, []
    for w in range(len(mesh)):
        nodes = mesh.times[w : w + mesh.depth].flatten()
        size = len(nodes)
        matrix = mesh.coupling[w, :size, :size]
        base = (left.to(form.dtype) + shift[w, :size].unsqueeze(1)).view(size, -1)
        for iteration in range(1, MAX_ITERATIONS + 1):
            before = f
            state = torch.addmm(base, matrix, f).view(size, rows, width)
            f = form.state_term(nodes, state).view(size, -1)
            if counts is not None:
                if iteration == counts[w]:
                    break
            # Neighbouring intervals take about as many iterations: earlier checks would only synchronise the
            # device.
            elif iteration >= least:
                change = norms((mesh.lengths[w] * (f - before)[count - 1]).view(rows, width))
                # If the state is infinite, both sides are infinite, and the iteration does not end here.
                if bool((change < (rtol * norms(state[count - 1])).clamp(min=atol)).all()):
                    break
        else:
            raise NotConverged(mesh.edges[w])
        least = max(2, iteration - 1)
        iterations.append(iteration)
        states[w] = state[:count]
        left = left + torch.mm(mesh.weights[w : w + 1], f[:count]).view(rows, width) + step_shift[w]
        entering = w + mesh.depth
        guess = [torch.mm(mesh.extrapolation[entering], f[-count:])] if entering < len(mesh) else []
        f = torch.cat((f[count:], *guess))
    return states, iterations


def solve_adjoint(
    form: Formulation,
    linear: Linearization,
    mesh: Mesh,
    cotangent: Tensor,
    rtol: float,
    counts: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor, list[int], float]:
    """Solve the adjoint equations from the last interval to the first.

    With g the cotangents of the states Y from outside and J = df/dy at the nodes, the cotangents of the
    velocities are c = Q^T e with e = g + J^T c, and that of y(0) is the sum of e. An interval enters with the
    extrapolated c of its successor, which is a polynomial times the quadrature weights.

    Args:
        form: The formulation.
        linear: The formulation's linearization at the states.
        mesh: The mesh.
        cotangent: g (n, N, rows, width).
        rtol: Tolerance of the change, relative to the cotangent of the state, but for rounding.
        counts: The number of iterations of each interval; None iterates until the change is small enough.

    Returns:
        The cotangent of y(0) (rows, width), wide; c (n, N, rows, width); the number of iterations of each
        interval (n); and with `counts` the largest change of a last iteration over its tolerance, else 0.

    Raises:
        NotConverged: if an interval does not converge in `MAX_ITERATIONS`.
    """
    count, nodes, rows, width = cotangent.shape
    # Cotangents of saturated units are denormal numbers, which processors multiply slowly.
    magnitude = cotangent.abs()
    negligible = magnitude < torch.finfo(magnitude.dtype).eps ** 2 * magnitude.max()
    cotangent = cotangent.masked_fill(negligible, 0.0)
    right = form.start.new_zeros(rows, width)
    velocity_cotangents = torch.empty_like(cotangent)
    c = torch.zeros_like(cotangent[count - mesh.depth :])
    iterations, changes, least = [0] * count, [], 2
    for w in reversed(range(count)):
        low = max(w - mesh.depth + 1, 0)
        active, size = slice(low, w + 1), (w + 1 - low) * nodes
        matrix = mesh.coupling[low, :size, :size].T
        base = torch.mm(mesh.weights[active].reshape(-1, 1), right.to(form.dtype).view(1, -1))
        base = torch.addmm(base, matrix, cotangent[active].reshape(size, -1))
        for iteration in range(1, MAX_ITERATIONS + 1):
            before = c
            back = linear.vjp(active, c)
            c = torch.addmm(base, matrix, back.view(size, -1)).view_as(back)
            if iteration == counts[w] if counts is not None else iteration >= least:
                after = c[-1].sum(0)
                change = norms((after - before[-1].sum(0)).flatten())
                # Where the nodes' cotangents nearly cancel, as for a time just after an edge, rounding
                # remains.
                rounding = torch.finfo(c.dtype).eps * norms(c[-1].flatten())
                allowed = torch.maximum(rtol * norms(after.flatten()), rounding)
                if counts is not None:
                    changes.append((change / allowed).masked_fill(change == 0, 0.0))  # 0 / 0
                    break
                if bool(change <= allowed):
                    break
        else:
            raise NotConverged(mesh.edges[w])
        least, iterations[w] = max(2, iteration - 1), iteration
        velocity_cotangents[w] = c[-1]
        e = back.add_(cotangent[active])
        right = right + e[-1].sum(0)
        first, c = c[0], c[:-1]
        if low > 0:
            guess = torch.mm(mesh.adjoint_extrapolation[low - 1], first.flatten(1)).view_as(first)
            c = torch.cat((guess.unsqueeze(0), c))
    # One number is read from the device, after all intervals.
    return right, velocity_cotangents, iterations, float(torch.stack(changes).amax()) if changes else 0.0
