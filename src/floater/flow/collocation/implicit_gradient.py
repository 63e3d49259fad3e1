"""The gradient of a collocation solution by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from floater.flow.collocation import newton
from floater.flow.collocation.fixed_point import NotConverged, solve_adjoint
from floater.flow.collocation.formulation import Formulation, Linearization
from floater.flow.collocation.mesh import Mesh
from floater.flow.collocation.plan import Plan
from floater.flow.errors import FlowDiverged
from floater.flow.second_derivatives import refuse_second_derivatives

# The adjoint iterations end when their change is this many tolerances. The remaining error is smaller by the
# contraction, 0.1 to 0.2; a gradient is not fed back, so its error does not grow from interval to interval.
_CHANGE = 6.0
# Kept numbers of iterations are reused until their remainder has doubled; with a stricter rule training would
# determine them anew every few steps.
_SERVES = 2.0


def differentiable_velocities(
    form: Formulation,
    mesh: Mesh,
    plan: Plan,
    states: Tensor,
    rtol: float,
    velocities: Tensor | None = None,
) -> Tensor:
    """Return dp/dt at the nodes as a function of the start and the parameters.

    The states Y solve Y = y(0) + Q f(Y), which defines them as a function of y(0) and the parameters of f.
    The backward pass solves the adjoint of the linearized equations: it is exact for the discrete solution,
    and no iterate is stored.

    Args:
        form: The formulation.
        mesh: The mesh.
        plan: Keeps the numbers of iterations for the next backward pass.
        states: Y (n, N, rows, width), without gradient.
        rtol: Tolerance of the solve.
        velocities: The values to return, if they are known better than by evaluating the field.

    Returns:
        Velocities (n, N, rows, dim).

    Raises:
        FlowDiverged: in the backward pass, if the adjoint iterations do not converge.
    """
    parameters = form.parameters(mesh.times.flatten(), states.flatten(0, 1))
    result: Tensor = _Implicit.apply(  # type: ignore[no-untyped-call]
        form, mesh, plan, rtol, velocities, states, form.start, *parameters
    )
    return result


class _Implicit(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        form: Formulation,
        mesh: Mesh,
        plan: Plan,
        rtol: float,
        velocities: Tensor | None,
        states: Tensor,
        start: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.form, ctx.mesh, ctx.plan, ctx.rtol = form, mesh, plan, rtol
        # PyTorch then detects a parameter that is written to before the backward pass.
        ctx.save_for_backward(states, start, *parameters)
        if velocities is not None:
            return velocities.view_as(velocities)
        velocities = form.velocity(mesh.times.flatten(), states.flatten(0, 1), parameters)
        return velocities.view(*states.shape[:2], *velocities.shape[1:])

    @staticmethod
    @refuse_second_derivatives
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        form, mesh, plan, rtol = ctx.form, ctx.mesh, ctx.plan, _CHANGE * ctx.rtol
        states, start, *parameters = ctx.saved_tensors
        (of_velocity,) = cotangents
        if not bool(torch.stack(of_velocity.aminmax()).isfinite().all()):
            # A loss scale was too large: NaN gradients report it, as from any other operation.
            return *6 * (None,), *(torch.full_like(x, torch.nan) for x in (start, *parameters))
        linear = form.linearize(mesh.times, states)
        of_states = linear.velocity_vjp(of_velocity)
        arguments = (form, linear, mesh, of_states, rtol)
        known = None if form.implicit else plan.backward.get(len(states))
        try:
            if form.implicit:
                of_start, of_f = newton.solve_adjoint(linear, mesh, of_states, ctx.rtol)
                return _gradients(linear, of_start, of_f, of_velocity, parameters)
            excess = torch.inf
            if known is not None:
                of_start, of_f, _, excess = solve_adjoint(*arguments, known)
            if not excess <= _SERVES:
                of_start, of_f, plan.backward[len(states)], _ = solve_adjoint(*arguments)
        except NotConverged as error:
            raise FlowDiverged(error.time, f"in the backward pass: {error}") from error
        return _gradients(linear, of_start, of_f, of_velocity, parameters)


def _gradients(
    linear: Linearization, of_start: Tensor, of_f: Tensor, of_velocity: Tensor, parameters: Sequence[Tensor]
) -> tuple[Any, ...]:
    gradients = linear.parameter_vjp(of_f, of_velocity)
    shaped = (x.view_as(parameter) for x, parameter in zip(gradients, parameters, strict=True))
    return *6 * (None,), of_start, *shaped
