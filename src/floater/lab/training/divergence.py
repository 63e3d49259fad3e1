"""The step at which training diverged, detected without waiting for the device at every step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from floater.errors import DataError
from floater.lab.training.checkpoints import last_checkpoint


class DivergenceError(DataError):
    """A loss, a gradient or a weight is not finite; the message names the step, the rates and what to try."""


class DivergenceMonitor:
    """A record of the first step whose loss or gradient is not finite, on the device of the loss.

    Attributes:
        step: number of that step, a scalar; -1 if there is none.
        loss: loss at that step.
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
    def failure(self) -> str | None:
        """Return a clause that names what was not finite and the step; None if there was no such step.

        This waits for the device.
        """
        if (step := int(self.step)) < 0:
            return None
        loss = self.loss.item()
        what = "the gradient is not finite" if math.isfinite(loss) else f"the loss is {loss}"
        return f"{what} at step {step}"

    @property
    def norms(self) -> str:
        """Return the norms of the gradient at the step and before it, for a message."""
        before = self.norm_before.item()
        earlier = f" ({before:.3g} the step before)" if before == before else ""
        return f"norm of the gradient {self.norm.item():.3g}{earlier}"


def diverged(
    what: str, rates: Mapping[str, float], monitor: DivergenceMonitor, run: Path, *, clips: bool
) -> DivergenceError:
    """Return the error of a training run that diverged, with advice.

    Args:
        what: clause that names what was not finite, and the step.
        rates: learning rates by name, at that step.
        monitor: monitor of the training.
        run: directory of the run.
        clips: whether the norm of the gradient is limited.

    Example:
        >>> rates = {"learning rate": 0.1}
        >>> print(diverged("the loss is nan", rates, DivergenceMonitor(), Path("no-such-run"), clips=True))
        the training diverged: the loss is nan; learning rate 0.1, norm of the gradient nan; in another ...
    """
    numbers = ", ".join([*(f"{name} {rate:.3g}" for name, rate in rates.items()), monitor.norms])
    if int(monitor.step) == 1:  # its gradient is that of the weights that the training began with
        return DivergenceError(
            f"the training cannot begin: {what}; {numbers}; no weight has changed yet, so the cause is in "
            "the data (a length, a time or a value far from the others), in the settings of the model or in "
            "its first weights"
        )
    advice = [
        "lower training.learning_rate",
        *["lower training.flow.lr_multiplier"] * (len(rates) > 1),
        "raise training.warmup_steps",
        *["set training.max_grad_norm to 1"] * (not clips),
    ]
    checkpoint = last_checkpoint(run)
    usable = f"; the weights of {checkpoint} are finite" if checkpoint else ""
    return DivergenceError(
        f"the training diverged: {what}; {numbers}; in another run directory, {', or '.join(advice)}{usable}"
    )


def is_finite(model: nn.Module) -> bool:
    """Return whether all weights of a model are finite.

    Example:
        >>> is_finite(nn.Linear(2, 2))
        True
    """
    finite = [parameter.detach().isfinite().all() for parameter in model.parameters()]
    return not finite or bool(torch.stack([flag.to(finite[0].device) for flag in finite]).all())
