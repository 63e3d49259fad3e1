"""Fixed-point sweeps over the windows of a collocation system, and over the transposed system."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from floater.flow.coordinates import Coordinates
from floater.flow.stepping import norms
from floater.flow.windows import NODES, Windows

MAX_SWEEPS = 60


class NoConvergence(RuntimeError):
    """The sweeps over a window did not settle, or what they settled on is infinite or NaN.

    Args:
        time: Where.
        reason: What was seen there.
    """

    def __init__(self, time: float, reason: str) -> None:
        super().__init__(f"{reason} near t = {time:g}")
        self.time = time


def forward_sweeps(
    y: Coordinates, windows: Windows, rtol: float, atol: float, counts: Sequence[int] | None = None
) -> tuple[Tensor, list[int]]:
    """Solve Y = y(0) + Q f(Y) at the nodes of all windows.

    A sweep is one evaluation at all nodes of the windows in flight. The first of them retires when
    its change falls under the tolerance, and the next window enters with its predecessor's velocity,
    a polynomial, extrapolated. The running state is wide.

    Args:
        y: The coordinates.
        windows: The windows.
        rtol: Tolerance of the change of a row, relative to the row.
        atol: The least tolerance.
        counts: How many sweeps each window shall take; no change is looked at then.

    Returns:
        y at the nodes (n, N, rows, width) and the numbers of sweeps (n).

    Raises:
        NoConvergence: if a window does not settle in `MAX_SWEEPS` sweeps.

    Example:
        >>> from floater.flow import ZeroField
        >>> from floater.flow.coordinates import coordinates
        >>> windows = Windows([0.0, 1.0], 1, torch.float32, torch.device("cpu"))
        >>> y = coordinates(ZeroField(), torch.ones(1, 2), 0.0, 1e-6)
        >>> states, taken = forward_sweeps(y, windows, 1e-6, 1e-6)
        >>> states.shape, taken
        (torch.Size([1, 8, 1, 2]), [2])
    """
    left = y.start.detach()
    rows, width = left.shape
    states = torch.empty(len(windows), NODES, rows, width, dtype=y.dtype, device=left.device)
    forced, steps = windows.displacements(y.forcing(windows.times.flatten()))
    f = y.response(windows.times[0, :1], left.to(y.dtype).unsqueeze(0))
    f = f.view(1, -1).expand(windows.flight * NODES, -1)
    least, taken = 2, []
    for w in range(len(windows)):
        nodes = windows.times[w : w + windows.flight].flatten()
        size = len(nodes)
        matrix = windows.quadrature[w, :size, :size]
        base = (left.to(y.dtype) + forced[w, :size].unsqueeze(1)).view(size, -1)
        for sweep in range(1, MAX_SWEEPS + 1):
            before = f
            state = torch.addmm(base, matrix, f).view(size, rows, width)
            f = y.response(nodes, state).view(size, -1)
            if counts is not None:
                if sweep == counts[w]:
                    break
            # The neighbours took about as many, so the first changes need no look.
            elif sweep >= least:
                change = norms((windows.lengths[w] * (f - before)[NODES - 1]).view(rows, width))
                # Infinity is not less than infinity.
                if bool((change < (rtol * norms(state[NODES - 1])).clamp(min=atol)).all()):
                    break
        else:
            raise NoConvergence(windows.edges[w], f"no convergence in {MAX_SWEEPS} sweeps")
        least = max(2, sweep - 1)
        taken.append(sweep)
        states[w] = state[:NODES]
        left = left + torch.mm(windows.weights[w : w + 1], f[:NODES]).view(rows, width) + steps[w]
        entering = w + windows.flight
        guess = [torch.mm(windows.guesses[entering], f[-NODES:])] if entering < len(windows) else []
        f = torch.cat((f[NODES:], *guess))
    return states, taken


def backward_sweeps(
    y: Coordinates,
    windows: Windows,
    states: Tensor,
    cotangent: Tensor,
    rtol: float,
    counts: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor, list[int], Tensor | None]:
    """Solve the transposed system, from the last window to the first.

    With g the cotangents of y at the nodes from outside and J the derivative of f there, the total
    cotangents of y are e = g + J^T Q^T e, and those of f are Q^T e. A window enters with those of its
    successor, a polynomial but for the weights, extrapolated.

    Args:
        y: The coordinates.
        windows: The windows.
        states: y at the nodes (n, N, rows, width).
        cotangent: g, of the same shape.
        rtol: Tolerance of the change, relative to the cotangent of the state, but for rounding.
        counts: How many sweeps each window shall take; no change is looked at then.

    Returns:
        The cotangents of the start (rows, width), wide, those of f at the nodes (n, N, rows, width),
        the numbers of sweeps (n), and if these were given the largest last change, over its tolerance.

    Raises:
        NoConvergence: if a window does not settle in `MAX_SWEEPS` sweeps.
    """
    count, nodes, rows, width = states.shape
    pullback = y.transposed(windows.times, states)
    # Next to nothing comes back from saturated units: denormal numbers, which processors multiply slowly.
    magnitude = cotangent.abs()
    small = magnitude < torch.finfo(magnitude.dtype).eps ** 2 * magnitude.max()
    cotangent = cotangent.masked_fill(small, 0.0)
    right = y.start.new_zeros(rows, width)
    f = torch.empty_like(states)
    gamma = torch.zeros_like(states[count - windows.flight :])
    taken, changes, least = [0] * count, [], 2
    for w in reversed(range(count)):
        low = max(w - windows.flight + 1, 0)
        active, size = slice(low, w + 1), (w + 1 - low) * nodes
        matrix = windows.quadrature[low, :size, :size].T
        base = torch.mm(windows.weights[active].reshape(-1, 1), right.to(y.dtype).view(1, -1))
        base = torch.addmm(base, matrix, cotangent[active].reshape(size, -1))
        for sweep in range(1, MAX_SWEEPS + 1):
            before = gamma
            back = pullback(active, gamma)
            gamma = torch.addmm(base, matrix, back.view(size, -1)).view_as(back)
            if sweep == counts[w] if counts is not None else sweep >= least:
                after = gamma[-1].sum(0)
                change = norms((after - before[-1].sum(0)).flatten())
                # Where the nodes cancel, as at a time close to a window's beginning, rounding is left.
                rounding = torch.finfo(gamma.dtype).eps * norms(gamma[-1].flatten())
                allowed = torch.maximum(rtol * norms(after.flatten()), rounding)
                if counts is not None:
                    # Both may be zero.
                    changes.append((change / allowed).masked_fill(change == 0, 0.0))
                    break
                if bool(change <= allowed):
                    break
        else:
            raise NoConvergence(windows.edges[w], f"no convergence in {MAX_SWEEPS} sweeps")
        least, taken[w] = max(2, sweep - 1), sweep
        f[w] = gamma[-1]
        e = back.add_(cotangent[active])
        right = right + e[-1].sum(0)
        first, gamma = gamma[0], gamma[:-1]
        if low > 0:
            guess = torch.mm(windows.returns[low - 1], first.flatten(1)).view_as(first)
            gamma = torch.cat((guess.unsqueeze(0), gamma))
    return right, f, taken, torch.stack(changes).amax() if changes else None
