"""How much a flow makes of a small change of its start: where that, and not the solver, limits accuracy."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn

from floater.flow.coordinates import coordinates
from floater.flow.piecewise import Dense
from floater.flow.stepping import norms
from floater.flow.sweeps import NoConvergence, forward_sweeps
from floater.flow.windows import Windows

_CHANGE = 2.0**-13
_ROUNDING = 2.0**-23


class FlowSensitive(RuntimeWarning):
    """A flow makes more of float32's last bit of its start than ten tolerances of the solve."""


@torch.no_grad()
def amplification(field: nn.Module, start: Tensor, solution: Dense, rtol: float, atol: float) -> float:
    """The change of p, over the relative change of the start that brings it about: a condition number.

    Args:
        field: The field.
        start: p at the beginning (rows, dim).
        solution: The solution from there.
        rtol, atol: The tolerances of the sweeps.

    Returns:
        The largest over rows and edges of windows, changes of p being relative to max(1, |p|). What it is for
        larger changes may be less, as a bounded flow cannot drift apart for ever: read 1e4 as "or more".

    Example:
        >>> from floater.flow import SinusoidField, dense
        >>> field = SinusoidField(2)
        >>> circle = dense(field, field.start()[None], 3.0)
        >>> round(amplification(field, field.start()[None], circle, 1e-6, 1e-6), 2)  # the start itself moves
        1.0
    """
    with torch.autocast(start.device.type, enabled=False):
        y = coordinates(field, start * (1 + _CHANGE), solution.begin, 0.0)
        windows = Windows(solution.edges, 1, y.dtype, start.device)
        try:
            states, _ = forward_sweeps(y, windows, 10 * rtol, 10 * atol)
        except NoConvergence:
            return math.inf
        velocities = windows.by_nodes(y.read, states)
        moved = Dense(windows, (start * (1 + _CHANGE)).to(y.start), velocities, y.dtype).edge_values
        p = solution.edge_values
        return float((norms(moved - p) / norms(p).clamp(min=1)).max()) / _CHANGE


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
