"""How much a flow makes of a small change of its start: where that, and not the solver, limits accuracy."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn

from floater.flow.coordinates import coordinates
from floater.flow.piecewise import Dense
from floater.flow.stepping import full_precision, norms
from floater.flow.sweeps import NoConvergence, forward_sweeps
from floater.flow.windows import Windows

_CHANGE = 2.0**-13
_ROUNDING = 2.0**-23
# What sweeps leave must be small beside what is looked for.
_SETTLED = 1e-2


class FlowSensitive(RuntimeWarning):
    """A flow makes more of float32's last bit of its start than ten tolerances of the solve."""


@torch.no_grad()
def amplification(field: nn.Module, start: Tensor, solution: Dense) -> float:
    """The change of p, over the relative change of the start that brings it about: a condition number.

    Args:
        field: The field.
        start: p at the beginning (rows, dim).
        solution: The solution from there.

    Returns:
        The largest over rows and edges of windows, changes of p being relative to max(1, |p|). What it is for
        larger changes may be less, as a bounded flow cannot drift apart for ever: read 1e4 as "or more".

    Example:
        >>> from floater.flow import SinusoidField, dense
        >>> field = SinusoidField(2)
        >>> circle = dense(field, field.start()[None], 3.0)
        >>> round(amplification(field, field.start()[None], circle), 2)  # the start itself moves
        1.0
    """
    settled = _SETTLED * _CHANGE, _SETTLED**2 * _CHANGE
    moved = _solved(field, start * (1 + _CHANGE), solution.edges, *settled)
    if moved is None:
        return math.inf
    p = solution.edge_values
    return float((norms(moved - p) / norms(p).clamp(min=1)).max()) / _CHANGE


@torch.no_grad()
def global_error(field: nn.Module, start: Tensor, solution: Dense, rtol: float, atol: float) -> float:
    """The error at the edges of the windows, in tolerances, as a solution in windows half as long shows it.

    Args:
        field: The field.
        start: p at the beginning (rows, dim).
        solution: The solution from there.
        rtol, atol: The tolerances: of the norm of p, and the least.

    Returns:
        The largest over rows and edges.

    Example:
        >>> from floater.flow import SinusoidField, dense
        >>> field = SinusoidField(2)
        >>> circle = dense(field, field.start()[None], 3.0, rtol=1e-5)
        >>> global_error(field, field.start()[None], circle, 1e-5, 1e-5) < 1
        True
    """
    edges = torch.tensor(solution.edges, dtype=torch.float64)
    halved = torch.stack((edges[:-1], edges[:-1].lerp(edges[1:], 0.5)), dim=1).flatten().tolist()
    p = solution.edge_values
    exact = _solved(field, start, [*halved, solution.end], _SETTLED * rtol, _SETTLED * atol)
    if exact is None:
        return math.inf
    return float((norms(exact[::2] - p) / (rtol * norms(p)).clamp(min=atol)).max())


def _solved(field: nn.Module, start: Tensor, edges: list[float], rtol: float, atol: float) -> Tensor | None:
    """p at the edges of windows, in the widest arithmetic; None if the sweeps do not settle."""
    with full_precision(start.device):
        y = coordinates(field, start, edges[0], 0.0)
        windows = Windows(edges, 1, y.dtype, start.device)
        least = 8 * torch.finfo(y.dtype).eps
        try:
            states, _ = forward_sweeps(y, windows, max(rtol, least), max(atol, least))
        except NoConvergence:
            return None
        velocities = windows.by_nodes(y.read, states)
        return Dense(windows, start.to(y.start), velocities, y.dtype).edge_values


def warn_if_sensitive(factor: float, end: float, rtol: float) -> None:
    """Warn where rounding the start to float32 moves p by more than ten times `rtol`, or ten roundings.

    Args:
        factor: The `amplification`.
        end: The time up to which it was found.
        rtol: The tolerance of the solve.
    """
    if factor * _ROUNDING > 10 * max(rtol, _ROUNDING):
        warnings.warn(
            f"a change of this flow's start grows about {factor:.1g} times up to t = {end:g}, so float32 "
            "starts and weights determine p no better, whatever the solver; smaller weights "
            "(floater.flow.small_), a smaller delta or time_scale, or a shorter span would",
            FlowSensitive,
            stacklevel=2,
        )
