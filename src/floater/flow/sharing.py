"""One solve for all batches of a training step, differentiated once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from floater.flow.errors import FlowError


class SharedSolve:
    """Vectors that the passes of a step share, as a solve does not depend on their batches.

    The backward passes before the last one end at the vectors, whose gradients add up there. That of the last
    pass takes the sum through the solve to the parameters, which get the gradient of one solve per pass.

    Args:
        length: Solve for positions 0, ..., length - 1, if the first pass does not need more.

    Example:
        >>> weight = torch.tensor(3.0, requires_grad=True)
        >>> shared = SharedSolve(2)
        >>> for shared.last in (False, True):
        ...     shared.vectors(torch.arange(2), lambda t: weight * t.view(-1, 1, 1)).sum().backward()
        >>> weight.grad
        tensor(2.)
    """

    def __init__(self, length: int) -> None:
        self.length, self.last = length, False
        self._values: Tensor | None = None
        self._leaf: Tensor | None = None

    def check(self) -> None:
        """Check that the gradients of all passes have reached the parameters.

        Raises:
            RuntimeError: if the last pass did not call the flow.
        """
        if self._leaf is not None and self._leaf.grad is not None:
            raise RuntimeError("the last pass of a step did not call the flow, whose gradient is lost")

    def vectors(self, wanted: Tensor, solve: Callable[[Tensor], Tensor]) -> Tensor:
        """Return vectors (U, rows, dim) at increasing positions, from the shared solve if it covers them.

        Args:
            wanted: Positions (U,).
            solve: Function from positions to vectors.

        Raises:
            FlowError: if the solve fails.
        """
        count = len(wanted)
        counted = torch.arange(count, device="cpu").to(wanted)
        is_range = not wanted.requires_grad and bool((wanted == counted).all())
        if not torch.is_grad_enabled() or not is_range:
            return self._with_earlier(solve(wanted))
        if self._values is None:
            with suppress(FlowError):  # it may diverge beyond the positions of this pass
                self._values = solve(torch.arange(max(count, self.length), device="cpu").to(wanted))
                self._leaf = self._values.detach().requires_grad_()
                self._values.register_hook(self._added)  # type: ignore[no-untyped-call]
        if self._values is None or self._leaf is None or len(self._values) < count:
            return self._with_earlier(solve(wanted))
        return (self._values if self.last else self._leaf)[:count]

    def _with_earlier(self, solved: Tensor) -> Tensor:
        """Return vectors of another solve, whose backward pass in the last pass takes the sum along."""
        if not self.last or self._values is None or self._leaf is None or self._leaf.grad is None:
            return solved
        return solved + 0 * self._values[:1]

    def _added(self, gradient: Tensor) -> Tensor:
        """Add the gradients of the passes before the last one to that of the last one."""
        if self._leaf is None or self._leaf.grad is None:
            return gradient
        total, self._leaf.grad = gradient + self._leaf.grad, None
        return total
