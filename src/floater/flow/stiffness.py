"""Distinction of solves that fail because the field is stiff from those whose vectors diverge."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.flow.dynamics import Dynamics
from floater.flow.errors import FlowDiverged, FlowError, FlowStiff
from floater.flow.precision import wide_dtype

# Components of the rows whose Jacobians are decomposed, which takes seconds.
_COMPONENTS = 512
# A field is called stiff where vectors forget a difference this many times over within the span, faster than
# any difference grows.
_FORGETS, _FASTER = 1000.0, 10.0


def rates(field: nn.Module, time: float, p: Tensor) -> tuple[float, float]:
    """Return the largest rates at which differences of vectors decay and grow.

    Args:
        field: The field.
        time: The time.
        p: Vectors (rows, dim); if they have many components, only the first rows are used.

    Returns:
        The largest negative and positive real parts, without signs, of the eigenvalues of dh/dp; zeros where
        the field has no finite derivative.

    Example:
        >>> from floater.flow import ZeroField
        >>> rates(ZeroField(), 0.0, torch.ones(1, 2))
        (0.0, 0.0)
    """
    wide = p.detach()[: max(1, _COMPONENTS // p.shape[1])].to(wide_dtype(p.device))
    dynamics = Dynamics(field, wide)
    with torch.enable_grad():
        leaf = wide.clone().requires_grad_()
        velocity = dynamics.velocity(wide.new_tensor(time), leaf)
        if not velocity.requires_grad:
            return 0.0, 0.0
        rows = [
            torch.autograd.grad(part.sum(), leaf, retain_graph=True, allow_unused=True)[0]
            for part in velocity.unbind(1)
        ]
    jacobian = torch.stack([torch.zeros_like(wide) if row is None else row for row in rows], 1)
    if not bool(jacobian.isfinite().all()):
        return 0.0, 0.0
    real = torch.linalg.eigvals(jacobian.cpu()).real
    return max(0.0, -float(real.min())), max(0.0, float(real.max()))


def failure(
    field: nn.Module, time: float, p: Tensor, *, span: float, reason: str, forgets: float = _FORGETS
) -> FlowError:
    """Return the error of a solve that took too many steps or became infinite.

    Args:
        field: The field.
        time: The time at which the solve stopped.
        p: Vectors there, or the last that are finite (rows, dim).
        span: The time to which rates of decay are compared: the span of the solve, or a step.
        reason: Why the solve failed.
        forgets: The rate times the span from which the field is called stiff.

    Returns:
        `FlowStiff` if differences of vectors decay much faster than they grow, else `FlowDiverged`.
    """
    decay, growth = rates(field, time, p)
    if decay * span > forgets and decay > _FASTER * growth:
        return FlowStiff(time, reason, decay)
    return FlowDiverged(time, reason)
