"""State passed from one solve to the next: mesh, numbers of iterations, ratio of true to estimated error."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

_USES = 1000
"""Solves by one plan: the error estimate notices intervals that have become too long and iterations that have
become too few, but not intervals that could be longer. A plan takes three to four solves, forward and
backward."""


@dataclass
class Plan:
    """A mesh, the iterations that solves on it take, and what is known of their error.

    Args:
        edges: The edges of the intervals.
        safety_factor: The part of the tolerance that the mesh was selected for.
        wide: Whether float32 did not meet the tolerance, so that the arithmetic is float64.
        forward: Iterations of the first intervals, as the last solve that observed them took.
        backward: The same of a backward pass, which begins at the last interval, by the number of intervals.
        reserve: Iterations beyond these for each interval, once they were too few.
        condition_number: See `error_control.condition_number`; 0 where it was not computed.
        error_ratio: The error found, over the sum of those estimated in the intervals; None where it was
            not looked for.
        remaining_uses: How many solves may still use the plan before it is made anew.
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

    def until(self, end: float) -> tuple[float, ...]:
        """Return the edges up to the first that is not before `end`.

        A last interval cut at `end` would take other numbers of iterations than those known.

        Example:
            >>> Plan([0.0, 1.0, 2.0, 3.0]).until(1.5)
            (0.0, 1.0, 2.0)
        """
        return tuple(self.edges[: bisect_left(self.edges, end) + 1])


@dataclass
class SolverState:
    """The state that a sequence of similar solves hands on, as those of one field while it is trained.

    Hand the same object to each solve, which reads and updates it. Without one, a solve depends on its
    arguments alone, and selects a mesh first: together as long as three to four solves.

    Args:
        problem: What the plan depends on other than the weights, as a text that is the same in each process.
        plan: The plan of the last solve by collocation; None before the first.

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

    def use(self, problem: str, end: float) -> Plan | None:
        """Return the plan if it is for this problem, reaches as far as `end` and may still be used.

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

    def keep(self, problem: str, plan: Plan) -> None:
        """Replace the plan."""
        self.problem, self.plan = problem, plan

    def reset(self) -> None:
        """Forget the plan: the next solve is that of a new state."""
        self.problem, self.plan = "", None
