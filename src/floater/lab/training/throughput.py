"""The tokens of a training run and the time spent on them, between two logs."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class Throughput(TrainerCallback):
    """A count of tokens and a clock, which stands still while a model is evaluated or saved.

    Attributes:
        tokens: number of tokens since the last log, of this process.

    Example:
        >>> throughput = Throughput()
        >>> throughput.start()
        >>> throughput.count(6)
        >>> throughput.tokens, throughput.take_seconds() > 0, throughput.tokens
        (6, True, 0)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the tokens and the time so far."""
        self.tokens: Tensor | int = 0
        self._since: float | None = None
        self._seconds = 0.0

    @property
    def has_started(self) -> bool:
        """Return whether there was any training since the last log."""
        return self._since is not None or self._seconds > 0

    def start(self) -> None:
        """Start the clock, unless it is running."""
        if self._since is None:
            self._since = time.perf_counter()

    def pause(self) -> None:
        """Stop the clock until the next start."""
        if self._since is not None:
            self._seconds += time.perf_counter() - self._since
            self._since = None

    def count(self, tokens: Tensor | int) -> None:
        """Add tokens."""
        self.tokens = self.tokens + tokens

    def take_seconds(self) -> float:
        """Return the seconds of training since the last log, and begin anew."""
        self.pause()
        seconds = self._seconds
        self.reset()
        return seconds

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop the clock before an evaluation or a checkpoint.

        A log at the same step comes first and stops the clock itself, after it has waited for the device.
        """
        if (control.should_evaluate or control.should_save) and not control.should_log:
            self.pause()

    on_epoch_end = on_step_end
