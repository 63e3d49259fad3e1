"""How long the windows of a collocation solve are, and the plans that fields keep between solves."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from floater.flow import stepping
from floater.flow.coordinates import Coordinates, velocity
from floater.flow.errors import FlowDiverged
from floater.flow.field import ScaledField
from floater.flow.legendre import gauss
from floater.flow.stepping import norms
from floater.flow.windows import NODES

SWEEPS = 9
"""Sweeps of one window alone that the planner aims at: longer windows converge more slowly."""

MAX_WINDOWS = 10_000
"""More would take minutes to plan, and their states gigabytes."""

_SHRINK, _GROW = 0.3, 1.5
_KEPT, _LIFE = 8, 1000


@dataclass
class Plan:
    """Windows, the sweeps that they took, and how many solves may still use them.

    The error estimate notices windows that have become too long and sweeps that have become too few, but
    not windows that could be longer.

    Args:
        edges: The windows' edges.
        strict: The part of the tolerance that they were made for.
        wide: Whether float32 did not meet the tolerance, and the arithmetic is float64.
        forward: Sweeps of the first windows in the last solve that counted them.
        backward: The same of its backward pass, which begins at the last window, by the number of windows.
        amplification: What the flow made of a small change of its start, where that was looked at.
        spread: The error that was found, over the sum of those estimated in the windows; None if it was
            not looked for.
        reserve: Sweeps that each window is given beyond these, once they were too few.
        life: How many solves may still use the plan before it is made anew.
    """

    edges: list[float]
    strict: float = 1.0
    wide: bool = False
    forward: list[int] = field(default_factory=list)
    backward: dict[int, list[int]] = field(default_factory=dict)
    amplification: float = 0.0
    spread: float | None = None
    reserve: int = 0
    life: int = _LIFE

    def until(self, end: float) -> list[float]:
        """The edges up to the first that is not before `end`; cut there, a window would take other sweeps.

        Example:
            >>> Plan([0.0, 1.0, 2.0, 3.0]).until(1.5)
            [0.0, 1.0, 2.0]
        """
        return self.edges[: bisect_left(self.edges, end) + 1]


_plans: WeakKeyDictionary[nn.Module, OrderedDict[Hashable, Plan]] = WeakKeyDictionary()


def keep_plan(owner: nn.Module, key: Hashable, plan: Plan) -> None:
    """Keep a plan for the next solves of a field.

    Plans live as long as the field and are no part of its state. A field under another time unit is
    made anew for every solve, so its plans are kept with the field beneath.

    Args:
        owner: The field.
        key: What else the plan depends on.
        plan: The plan.
    """
    plans = _plans.setdefault(_owner(owner), OrderedDict())
    plans[key] = plan
    while len(plans) > _KEPT:
        plans.popitem(last=False)


def forget_plans(owner: nn.Module) -> None:
    """Forget the plans of a field, so that the next solve is that of a new one.

    Example:
        >>> owner = nn.Identity()
        >>> keep_plan(owner, "key", Plan([0.0, 1.0]))
        >>> forget_plans(owner)
        >>> kept_plan(owner, "key", 1.0) is None
        True
    """
    _plans.pop(_owner(owner), None)


def kept_plan(owner: nn.Module, key: Hashable, end: float) -> Plan | None:
    """A kept plan, if there is one that reaches as far as `end` and may still be used.

    Example:
        >>> owner = nn.Identity()
        >>> keep_plan(owner, "key", Plan([0.0, 3.0]))
        >>> kept_plan(owner, "key", 1.5).edges, kept_plan(owner, "key", 4.0)
        ([0.0, 3.0], None)
    """
    plans = _plans.get(_owner(owner), OrderedDict())
    plan = plans.get(key)
    if plan is None or plan.edges[-1] < end or plan.life == 0:
        return None
    plan.life -= 1
    plans.move_to_end(key)
    return plan


def _owner(owner: nn.Module) -> nn.Module:
    return owner.field if isinstance(owner, ScaledField) else owner


def legendre_tail(f: Tensor) -> Tensor:
    """Size of the first Legendre coefficient that N nodes do not see, from the decay of the last three.

    Args:
        f: Velocities at the nodes of windows (..., N, rows, width).

    Returns:
        Its Euclidean norm (..., rows).

    Example:
        >>> x = gauss(NODES).nodes
        >>> bool(legendre_tail((0.1 * x).exp().view(-1, 1, 1)) < 1e-13)
        True
    """
    last = gauss(NODES, f.device, f.dtype).projection[-3:]
    a, b, c = norms(torch.matmul(last, f.flatten(-2)).view(*f.shape[:-3], 3, *f.shape[-2:])).unbind(-2)
    tiny = torch.finfo(a.dtype).tiny
    # Of even and odd fields every other coefficient vanishes.
    decay = torch.maximum(c / b.clamp(min=tiny), (c / a.clamp(min=tiny)).sqrt())
    return torch.maximum(b, c) * decay.clamp(max=1.0)


def truncation(lengths: Tensor, f: Tensor) -> Tensor:
    """Estimate of the largest error of the displacement within windows.

    It is the integral of the first polynomial left out, P_N, from 0 to x, which is
    (P_{N+1}(x) - P_{N-1}(x)) / (4 N + 2) and so at most 0.3 h / (2 N + 1) in a window of length h.

    Args:
        lengths: The windows' lengths h (n,).
        f: Velocities at their nodes (n, N, rows, width).

    Returns:
        Its Euclidean norm (n, rows).
    """
    return 0.3 / (2 * NODES + 1) * lengths.unsqueeze(-1) * legendre_tail(f)


@torch.no_grad()
def plan_windows(y: Coordinates, begin: float, end: float, rtol: float, atol: float) -> list[float]:
    """Choose the edges of windows by solving one window after the other.

    Source: the length of a window follows from the decay of its Legendre coefficients, like a step
    size, and from how many sweeps it takes.

    Args:
        y: The coordinates.
        begin, end: The span of time.
        rtol: Tolerance of a row of y, relative to the row.
        atol: The least tolerance.

    Returns:
        The edges, from begin to end.

    Raises:
        FlowDiverged: if windows vanish or are too many.
    """
    rule = gauss(NODES)
    quadrature = rule.quadrature.to(y.start.device, y.dtype)
    left, t, length = y.start, begin, min(1.0, end - begin)
    edges, f, before = [begin], None, length
    most = min(MAX_WINDOWS, stepping.MAX_STEPS)
    for _ in range(most):
        rest = end - t
        # The last windows share what is left, a little longer than planned rather than one more.
        step = rest / max(1, math.ceil(rest / length - 0.05)) if rest < 3 * length else length
        if step <= 1e-9 * max(abs(t), end - begin, 1e-300):
            raise FlowDiverged(t, "a collocation window vanished")
        times = t + step * rule.nodes.to(left)
        if f is None:
            guess = velocity(y, times[:1], left.to(y.dtype)[None]).expand(NODES, *left.shape)
        else:
            ratio = rule.evaluation(1 + step / before * rule.nodes, 5).to(f)
            guess = torch.mm(ratio, f.flatten(1)).view_as(f)
        found, sweeps = _one_window(y, left, times, step, quadrature, guess, rtol, atol)
        if found is None:
            length = _SHRINK * step
            continue
        state = left + step * (rule.weights.to(found) @ found.flatten(1)).view_as(left)
        scale = (rtol * norms(state)).clamp(min=atol)
        error = float((truncation(found.new_tensor([step]), found.unsqueeze(0)) / scale).max())
        if not math.isfinite(error):
            length = _SHRINK * step
            continue
        factor = min(_GROW, max(_SHRINK, 0.9 * max(error, 1e-12) ** (-1 / (NODES + 1))))
        if error > 1:
            length = factor * step
            continue
        left, f, before, t = state, found, step, t + step
        edges.append(t)
        if rest - step <= 1e-9 * (end - begin):
            edges[-1] = end
            return edges
        length = step * min(factor, (SWEEPS + 1) / sweeps)
    raise FlowDiverged(t, f"{most} windows were not enough")


def _one_window(
    y: Coordinates,
    left: Tensor,
    times: Tensor,
    length: float,
    quadrature: Tensor,
    guess: Tensor,
    rtol: float,
    atol: float,
) -> tuple[Tensor | None, int]:
    """Velocities (N, rows, width) at the nodes of one window, if it settles, and the sweeps taken.

    A sweep shrinks the change five times and more, so a few times the tolerance is close enough.
    """
    f, base = guess, left.to(y.dtype)
    for sweep in range(1, 2 * SWEEPS + 1):
        state = base + length * torch.mm(quadrature, f.flatten(1)).view_as(f)
        after = velocity(y, times, state)
        change = length * norms((after - f)[-1])
        f = after
        if bool((change < 3 * (rtol * norms(state[-1])).clamp(min=atol)).all()):
            return f, sweep
    return None, sweep
