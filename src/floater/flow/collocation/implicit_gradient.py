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
from floater.flow.precision import backward_in_full_precision
from floater.flow.second_derivatives import DISCRETE, refuse_second_derivatives

# The adjoint iterations end when their change is this many tolerances. The remaining error is smaller by the
# contraction, 0.1 to 0.2; a gradient is not fed back, so its error does not grow from interval to interval.
_CHANGE = 6.0
# Kept numbers of iterations are reused until their remainder has doubled; with a stricter rule training would
# determine them anew every few steps.
_MAX_EXCESS = 2.0


def differentiable_velocities(
    form: Formulation,
    mesh: Mesh,
    plan: Plan,
    states: Tensor,
    rtol: float,
    velocities: Tensor,
) -> Tensor:
    """Return dp/dt at the nodes as a function of the start and the parameters.

    The states Y solve Y = y(0) + Q f(Y), which defines them as a function of y(0) and the parameters of f.
    The backward pass solves the adjoint of the linearized equations: it is exact for the discrete solution,
    and no iterate is stored.

    Args:
        form: The formulation.
        mesh: The mesh.
        plan: The plan, which keeps the numbers of iterations for the next backward pass.
        states: Y (n, N, rows, width), without gradient.
        rtol: Tolerance of the solve.
        velocities: Their values (n, N, rows, dim).

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
        velocities: Tensor,
        states: Tensor,
        start: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.form, ctx.mesh, ctx.plan, ctx.rtol = form, mesh, plan, rtol
        # PyTorch then detects a parameter that is written to before the backward pass.
        ctx.save_for_backward(states, start, *parameters)
        return velocities.view_as(velocities)

    @staticmethod
    @refuse_second_derivatives("collocation", DISCRETE)
    @backward_in_full_precision
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        form, mesh, plan, rtol = ctx.form, ctx.mesh, ctx.plan, _CHANGE * ctx.rtol
        states, start, *parameters = ctx.saved_tensors
        (velocity_cotangents,) = cotangents
        linear = form.linearize(mesh.times, states)
        state_cotangents = linear.velocity_vjp(velocity_cotangents)
        arguments = (form, linear, mesh, state_cotangents, rtol)
        counts = None if form.implicit else plan.backward.get(len(states))
        try:
            if form.implicit:
                if not _finite(velocity_cotangents):
                    return _nan_gradients(start, parameters)
                start_cotangent, f_cotangents = newton.solve_adjoint(linear, mesh, state_cotangents, ctx.rtol)
                return _gradients(linear, start_cotangent, f_cotangents, velocity_cotangents, parameters)
            excess = torch.inf
            if counts is not None:
                # The excess is NaN if a cotangent is not finite: the cotangents need no check of their own.
                start_cotangent, f_cotangents, _, excess = solve_adjoint(*arguments, counts)
            if not excess <= _MAX_EXCESS:
                if not _finite(velocity_cotangents):
                    return _nan_gradients(start, parameters)
                start_cotangent, f_cotangents, plan.backward[len(states)], _ = solve_adjoint(*arguments)
        except NotConverged as error:
            raise FlowDiverged(error.time, f"in the backward pass: {error}") from error
        return _gradients(linear, start_cotangent, f_cotangents, velocity_cotangents, parameters)


def _finite(cotangents: Tensor) -> bool:
    return bool(torch.stack(cotangents.aminmax()).isfinite().all())


def _nan_gradients(start: Tensor, parameters: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return NaN gradients, by which a gradient scaler notices that the loss scale was too large."""
    return *6 * (None,), *(torch.full_like(x, torch.nan) for x in (start, *parameters))


def _gradients(
    linear: Linearization,
    start_cotangent: Tensor,
    f_cotangents: Tensor,
    velocity_cotangents: Tensor,
    parameters: Sequence[Tensor],
) -> tuple[Any, ...]:
    gradients = linear.parameter_vjp(f_cotangents, velocity_cotangents)
    shaped = (x.view_as(parameter) for x, parameter in zip(gradients, parameters, strict=True))
    return *6 * (None,), start_cotangent, *shaped
