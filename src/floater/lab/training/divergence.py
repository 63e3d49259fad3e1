"""The step at which a training diverged, found without waiting for the device at every step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.errors import DataError


class DivergenceError(DataError):
    """A loss, a gradient or a weight is not finite; the message names the step, the rates and what to try."""


class DivergenceMonitor:
    """A record of the first step whose loss or gradient is not finite, on the device of the loss.

    Attributes:
        step: number of that step, a scalar; -1 if there is none.
        loss: loss at that step, summed since the last log.
        norm: norm of the gradient at that step.
        norm_before: last finite norm before that step; NaN if there is none.

    Example:
        >>> monitor = DivergenceMonitor()
        >>> for step, norm in enumerate((2.0, float("inf"), 3.0), start=1):
        ...     monitor.observe(step, torch.tensor(0.5), norm)
        >>> monitor.step.item(), monitor.norm.item(), monitor.norm_before.item()
        (2, inf, 2.0)
    """

    def __init__(self) -> None:
        self.step = torch.tensor(-1)
        self.loss = self.norm = self.norm_before = torch.tensor(float("nan"))

    def observe(self, step: int, loss: Tensor, norm: Tensor | float, *, skips_steps: bool = False) -> None:
        """Record a step.

        Args:
            step: number of the step, from 1.
            loss: loss of the step, a scalar.
            norm: norm of the gradient.
            skips_steps: True if the optimizer skips a step whose gradient is not finite, as in fp16.
        """
        norm = torch.as_tensor(norm, device=loss.device, dtype=loss.dtype).detach()
        finite = loss.isfinite() if skips_steps else loss.isfinite() & norm.isfinite()
        before = self.step.to(loss.device)
        first = (before < 0) & ~finite
        self.step = torch.where(first, step, before)
        self.loss = torch.where(first, loss.detach(), self.loss.to(loss))
        self.norm = torch.where(first, norm, self.norm.to(loss))
        self.norm_before = torch.where(self.step < 0, norm, self.norm_before.to(loss))

    @property
    def norms(self) -> str:
        """Return the norms of the gradient at the step and before it, for a message."""
        before = self.norm_before.item()
        earlier = f" ({before:.3g} the step before)" if before == before else ""
        return f"norm of the gradient {self.norm.item():.3g}{earlier}"


def is_finite(model: nn.Module) -> bool:
    """Return whether all weights of a model are finite.

    Example:
        >>> is_finite(nn.Linear(2, 2))
        True
    """
    finite = [parameter.detach().isfinite().all() for parameter in model.parameters()]
    return not finite or bool(torch.stack([flag.to(finite[0].device) for flag in finite]).all())
