"""Solutions by Gauss-Legendre collocation, parallel in time: piecewise polynomials of exact gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from floater.flow.coordinates import Coordinates, coordinates
from floater.flow.legendre import gauss
from floater.flow.piecewise import Dense, edge_values
from floater.flow.plan import keep_plan, kept_edges, plan_windows, truncation
from floater.flow.stepping import FlowDiverged, wide_dtype
from floater.flow.sweeps import NoConvergence, backward_sweeps, forward_sweeps
from floater.flow.windows import NODES, Windows

# Plans aim at a part of the tolerance, so that they survive a training step. Sweeps stop when their change
# is a few times the tolerance: what is left then is smaller by the contraction, which is 0.1 to 0.2.
_PLANNED, _SWEPT_FORWARD, _SWEPT_BACKWARD = 0.3, 5.0, 3.0


class FlowInaccurate(RuntimeError):
    """No plan of a collocation solve met its tolerance.

    Args:
        time: Where the estimated error was largest.
        error: That error, relative to the tolerance.
    """

    def __init__(self, time: float, error: float) -> None:
        super().__init__(time, error)
        self.time, self.error = time, error

    def __str__(self) -> str:
        """One line: where, by how much, and what to try."""
        return (
            f"collocation missed its tolerance {self.error:.3g} times over near t = {self.time:.6g}; "
            "try a larger rtol or atol, a float64 start, or method='dopri5'"
        )


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
    solve estimates its error, of the sweeps and of the polynomials, and plans anew if the estimate
    fails. The arithmetic is float64 where float32 cannot hold `rtol`.

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
    with torch.autocast(start.device.type, enabled=False):
        y = coordinates(field, start, begin, rtol)
        wide = start.to(wide_dtype(start.device))
        flight = windows_in_flight(start.device, y.start.shape[1])
        worst = (math.inf, begin)
        for edges, strict in _plans(field, y, begin, end, rtol, atol):
            windows, part = Windows(edges, flight, y.dtype, start.device), _SWEPT_FORWARD * strict
            try:
                with torch.no_grad():
                    states, _ = forward_sweeps(y, windows, part * rtol, part * atol)
            except NoConvergence:
                continue
            if torch.is_grad_enabled():
                arguments = (y, windows, states, rtol, y.start, _by_nodes(y.parametric, windows, states))
                states = _Collocation.apply(*arguments)  # type: ignore[no-untyped-call]
            velocities = _by_nodes(y.read, windows, states)
            worst = _error(y, windows, wide.detach(), velocities.detach(), rtol, atol)
            if worst[0] <= 1:
                return Dense(windows, wide, velocities, torch.promote_types(torch.float32, start.dtype))
    if not math.isfinite(worst[0]):
        raise FlowDiverged(worst[1], "NaN or infinity in p")
    raise FlowInaccurate(worst[1], worst[0])


def _plans(
    field: nn.Module, y: Coordinates, begin: float, end: float, rtol: float, atol: float
) -> Iterator[tuple[list[float], float]]:
    """Edges of windows to try, and the part of the tolerance they are made for: the kept ones first."""
    key = (type(field), type(y), y.dtype, begin, rtol, atol)
    training = torch.is_grad_enabled()
    if training and (kept := kept_edges(field, key, end)) is not None:
        yield kept, 1.0
    for strict in (1.0, 0.1, 0.01):
        edges = plan_windows(y, begin, end, _PLANNED * strict * rtol, _PLANNED * strict * atol)
        if training:
            keep_plan(field, key, edges)
        yield edges, strict


def windows_in_flight(device: torch.device, width: int) -> int:
    """How many windows are swept together.

    A window that runs ahead takes a fourth more sweeps, but a larger product is done at a higher rate,
    which pays for small states and for devices with many cores.

    Example:
        >>> windows_in_flight(torch.device("cpu"), 128)
        2
    """
    if device.type != "cpu":
        return 8
    return 2 if width <= 256 else 1


def _by_nodes(function: Any, windows: Windows, states: Tensor) -> Tensor:
    """A function of times (m,) and states (m, rows, width) at all nodes (n, N, rows, width)."""
    result: Tensor = function(windows.times.flatten(), states.flatten(0, 1))
    return result.view(len(windows), NODES, *result.shape[1:])


@torch.no_grad()
def _error(
    y: Coordinates, windows: Windows, start: Tensor, velocities: Tensor, rtol: float, atol: float
) -> tuple[float, float]:
    """The largest estimated error relative to the tolerance, and the time at which it is.

    The field itself is evaluated once more, at the last node of every window, on the polynomial's
    value there: what is missing at the velocity is what the sweeps left.
    """
    lefts = edge_values(windows, start, velocities)
    last = torch.einsum("k,nkrd->nrd", gauss(NODES).quadrature[-1].to(velocities), velocities)
    p = lefts[:-1].to(velocities.dtype) + windows.lengths.view(-1, 1, 1) * last
    missing = (y.field(windows.times[:, -1], p) - velocities[:, -1]).norm(dim=-1)
    error = windows.lengths.unsqueeze(1) * missing + truncation(windows.lengths, velocities)
    relative = (error / (rtol * p.norm(dim=-1)).clamp(min=atol)).amax(1).nan_to_num(nan=math.inf)
    worst = int(relative.argmax())
    return float(relative[worst]), windows.edges[worst]


class _Collocation(torch.autograd.Function):
    """The states at the nodes as the function of y(0) and f that the collocation equations imply.

    The value of f is not looked at: the states solve the equations already.
    """

    @staticmethod
    def forward(
        ctx: Any, y: Coordinates, windows: Windows, states: Tensor, rtol: float, start: Tensor, f: Tensor
    ) -> Tensor:
        ctx.y, ctx.windows, ctx.rtol = y, windows, rtol
        ctx.save_for_backward(states)
        return states.view_as(states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        (states,) = ctx.saved_tensors
        with torch.autocast(states.device.type, enabled=False):
            try:
                start, f = backward_sweeps(
                    ctx.y, ctx.windows, states, cotangents[0], _SWEPT_BACKWARD * ctx.rtol
                )
            except NoConvergence as error:
                raise FlowDiverged(ctx.windows.edges[-1], f"in the backward pass: {error}") from error
        return None, None, None, None, start, f
