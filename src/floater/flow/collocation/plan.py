"""State passed from one solve to the next: mesh, numbers of iterations, ratio of true to estimated error."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field

from floater.flow.snapshot import Derived

_USES = 1000
"""Number of solves by one plan. The error estimate detects intervals that have become too long and iterations
that have become too few, but not intervals that could be longer. A new plan costs one to two more solves,
forward and backward."""


@dataclass
class Plan:
    """A mesh, the numbers of iterations of solves on it, and their measured error.

    Args:
        edges: The edges of the intervals.
        safety_factor: The part of the tolerance that the mesh was selected for.
        wide: Whether float32 did not meet the tolerance, so that the arithmetic is float64.
        implicit: Whether the field is stiff, so that Newton's method is used.
        forward: Numbers of iterations of the first intervals, from the last solve that counted them.
        backward: Numbers of iterations of a backward pass, by the number of intervals, of which it begins
            with the last.
        reserve: Number of further iterations of each interval, after `forward` was too few once.
        condition_number: See `error_control.condition_number`; 0 if it was not computed.
        error_ratio: The measured error over the sum of the estimates of the intervals; None if it was not
            measured.
        remaining_uses: The number of solves that may still use the plan before it is replaced.
    """

    edges: list[float]
    safety_factor: float = 1.0
    wide: bool = False
    forward: list[int] = field(default_factory=list)
    backward: dict[int, list[int]] = field(default_factory=dict)
    reserve: int = 0
    condition_number: float = 0.0
    error_ratio: float | None = None
    remaining_uses: int = _USES
    implicit: bool = False

    def until(self, end: float) -> tuple[float, ...]:
        """Return the edges up to the first that is not before `end`.

        A last interval that is cut at `end` would take another number of iterations than in the plan.

        Example:
            >>> Plan([0.0, 1.0, 2.0, 3.0]).until(1.5)
            (0.0, 1.0, 2.0)
        """
        return tuple(self.edges[: bisect_left(self.edges, end) + 1])


@dataclass
class SolverState(Derived):
    """The state of a sequence of similar solves, such as those of one field in training.

    Pass the same object to each solve, which reads and updates it. Without one, a solve depends only on its
    arguments and selects a mesh first, which takes 1.9 to 2.7 times as long in all.

    Args:
        problem: The conditions of the plan other than the weights, as text that is equal in all processes.
        plan: The plan of the last solve by collocation; None before the first.
        largest: A bound of the norms of rows in the last solve by collocation; infinite if there is none.

    Example:
        >>> import torch
        >>> from floater.flow import SinusoidField, solve
        >>> field, state = SinusoidField(2), SolverState()
        >>> _ = solve(field, field.start()[None], torch.tensor([3.0]), state=state)
        >>> state.plan.edges[-1]
        3.0
    """

    problem: str = ""
    plan: Plan | None = None
    largest: float = math.inf

    def use(self, problem: str, end: float) -> Plan | None:
        """Return the plan if it is for this problem, reaches `end` and may still be used.

        Example:
            >>> state = SolverState("key", Plan([0.0, 3.0]))
            >>> state.use("key", 1.5).edges, state.use("key", 4.0), state.use("other", 1.5)
            ([0.0, 3.0], None, None)
        """
        plan = self.plan
        if plan is None or self.problem != problem or plan.edges[-1] < end or plan.remaining_uses == 0:
            return None
        plan.remaining_uses -= 1
        return plan

    def reset(self) -> None:
        """Drop the plan, so that the next solve selects a new mesh."""
        self.problem, self.plan = "", None
