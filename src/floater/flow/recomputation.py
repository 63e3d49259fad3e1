"""Collocation whose backward pass solves piece after piece again rather than remember the solve."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from floater.flow.collocation import collocate, effective, swept, windows_in_flight
from floater.flow.coordinates import coordinates
from floater.flow.nonblocking import settle
from floater.flow.piecewise import Dense
from floater.flow.plan import Plan
from floater.flow.stepping import full_precision
from floater.flow.windows import Windows

PIECE = 8
"""Windows of one piece."""


def recomputed_solve(
    field: nn.Module, start: Tensor, times: Tensor, *, begin: float, rtol: float, atol: float
) -> Tensor:
    """p at increasing times by collocation, in training with the memory of a few windows.

    Source: Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost" (2016). The
    backward pass is given p at every eighth edge of the windows, solves the windows from there to the next
    such edge again, the last piece first, and so takes one more forward pass. It waits for a GPU.

    Args:
        field: See `floater.flow.solve`.
        start: p at time `begin` (rows, dim).
        times: Increasing times (length,), wide.
        begin: The time of the start.
        rtol, atol: Tolerances.

    Returns:
        p (length, rows, dim), with the gradient of the discrete solution.

    Raises:
        FlowDiverged, FlowInaccurate: as `floater.flow.dense` does.

    Example:
        >>> from floater.flow import MLPField
        >>> times = torch.tensor([0.5, 2.0], dtype=torch.float64)
        >>> p = recomputed_solve(MLPField(4), torch.zeros(1, 4), times, begin=0.0, rtol=1e-6, atol=1e-6)
        >>> p.shape, p.requires_grad
        (torch.Size([2, 1, 4]), True)
    """
    parameters = [parameter for parameter in field.parameters() if parameter.requires_grad]
    p: Tensor = _Recomputed.apply(  # type: ignore[no-untyped-call]
        (field, begin, rtol, atol, torch.is_grad_enabled()), start, times, *parameters
    )
    return p


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, solved: tuple[Any, ...], start: Tensor, times: Tensor, *parameters: Tensor
    ) -> Tensor:
        field, begin, rtol, atol, training = solved
        solution = collocate(field, start, float(times[-1]), begin, rtol, atol, training)
        edges, every = solution.edges, slice(None, None, PIECE)
        ctx.solved, ctx.edges, ctx.arithmetic = solved, edges, solution.arithmetic
        # The parameters are saved so that one written to before the backward pass is noticed.
        ctx.save_for_backward(solution.edge_values[:-1][every].clone(), times, *parameters)
        ctx.dtype = start.dtype
        return solution.at(times)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        field, _, rtol, atol, _ = ctx.solved
        states, times, *parameters = ctx.saved_tensors
        settle()  # of a solve that failed, none can be repeated
        rtol, atol = effective(field, rtol, atol)
        known, right = times.tolist(), torch.zeros_like(states[0])
        total = [torch.zeros_like(parameter) for parameter in parameters]
        of_times = torch.zeros_like(times) if ctx.needs_input_grad[2] else None
        with torch.enable_grad(), full_precision(states.device):
            for piece in reversed(range(len(states))):
                edges = ctx.edges[piece * PIECE : (piece + 1) * PIECE + 1]
                start = states[piece].to(ctx.dtype).requires_grad_()
                y = coordinates(field, start, edges[0], rtol if ctx.arithmetic == ctx.dtype else 0.0)
                windows = Windows(edges, windows_in_flight(states.device), y.dtype, states.device)
                returned: list[Tensor] = []
                velocities = swept(y, windows, Plan(edges), None, rtol, atol, returned)
                wide = start.to(states.dtype)
                solution = Dense(windows, wide, velocities, cotangents[0].dtype, returned=returned)
                own = slice(bisect_right(known, edges[0]) if piece else 0, bisect_right(known, edges[-1]))
                wanted = times[own].detach().requires_grad_(of_times is not None)
                outputs, gradients = [solution.at_edges()[-1]], [right]
                if len(wanted) > 0:
                    outputs.append(solution.at(wanted))
                    gradients.append(cotangents[0][own])
                leaves = [start, *parameters, *([wanted] if of_times is not None and len(wanted) > 0 else [])]
                found = torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)
                right = found[0].to(right)
                for gradient, add in zip(total, found[1 : 1 + len(total)], strict=True):
                    if add is not None:
                        gradient.add_(add)
                if of_times is not None and len(wanted) > 0:
                    of_times[own] = found[-1]
        return None, right.to(ctx.dtype), of_times, *total
