"""Training progress: a progress bar on a terminal, lines otherwise."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerControl, TrainerState, TrainingArguments

_T = TypeVar("_T")
MINUTE, _DELAY = 60.0, 5.0
"""Seconds between two lines in a file, and before a bar is shown on a terminal."""
_ESTIMATED = 5
"""Number of steps after which the training time is estimated."""
logger = logging.getLogger(__name__)


def watched(items: Iterable[_T], total: int, what: str) -> Iterator[_T]:
    """Yield items, and show how many are done and the time left: a bar on a terminal, else a line a minute.

    Nothing is shown of what takes less.

    Args:
        items: items, each of about the same work.
        total: their number.
        what: noun for an item, in the plural.

    Example:
        >>> list(watched([1, 2], 2, "batches"))
        [1, 2]
    """
    began = last = time.monotonic()
    with tqdm(total=total, unit=what, delay=_DELAY, leave=False, dynamic_ncols=True, disable=None) as bar:
        for done, item in enumerate(items):
            now = time.monotonic()
            if bar.disable and done and now - last >= MINUTE:
                left = duration((now - began) / done * (total - done))
                logger.info("%s of %s %s, about %s left", f"{done:,}", f"{total:,}", what, left)
                last = now
            yield item
            bar.update()


def duration(seconds: float) -> str:
    """Return a rounded duration in words.

    Example:
        >>> duration(50), duration(2400), duration(6 * 3600 + 900), duration(86400 * 5)
        ('50 seconds', '40 minutes', '6 hours', '5 days')
    """
    for unit, size in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 1.5 * size or (unit == "minute" and seconds >= size):
            return f"{seconds / size:.0f} {unit}{'s' * (round(seconds / size) != 1)}"
    return f"{seconds:.0f} seconds"


class TrainingProgress(ProgressCallback):
    """Show the completed steps, the remaining time, and the last logged loss and tokens per second.

    The remaining time is estimated from the steps of this process only, so it is also correct after a
    resumption. A validation is shown as a line above the bar. If standard error is not a terminal, there is
    no bar, and each log is a line.

    Example:
        >>> TrainingProgress().training_bar is None
        True
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar at the first step of this process."""
        self.current_step = self._first = state.global_step
        self._began: float | None = None
        if state.is_world_process_zero:
            self.training_bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                unit="step",
                dynamic_ncols=True,
                disable=None,  # shown only on a terminal
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Estimate the time of the training from its first steps, without the very first."""
        super().on_step_end(args, state, control, **kwargs)  # type: ignore[no-untyped-call]
        steps, now = state.global_step - self._first, time.monotonic()
        if steps == 1:
            self._began = now
        if self._began is None or steps < _ESTIMATED or not state.is_world_process_zero:
            return
        seconds = (now - self._began) / (steps - 1)
        self._began, left = None, state.max_steps - state.global_step
        if left * seconds > MINUTE:
            logger.info(
                "about %s for the %s steps left, at %.2g s a step, and the validations",
                *(duration(left * seconds), f"{left:,}", seconds),
            )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Show a training log behind the bar, a validation above it."""
        if not state.is_world_process_zero or not logs or not (line := describe(logs)):
            return
        if "loss" in logs and self.training_bar is not None and not self.training_bar.disable:
            self.training_bar.set_postfix_str(line)
        else:
            where = f"step {state.global_step:,} of {state.max_steps:,}"
            tqdm.write(f"{where}: {line}", file=sys.stderr)


def describe(logs: dict[str, Any]) -> str:
    """Describe an entry of the log in a line; the Trainer's own statistics give an empty string.

    Example:
        >>> describe({"loss": 2.30259, "tokens_per_second": 12345.6, "epoch": 1.5, "minutes": 0.2})
        'loss 2.303, 12,346 tokens/s'
        >>> describe({"eval_loss": 1.5, "eval_bleu": 31.25, "minutes": 3.14159})
        'validation loss 1.5, bleu 31.25 (3.1 minutes)'
        >>> describe({"train_runtime": 9.0, "train_loss": 2.0})
        ''
    """
    if "loss" in logs:
        speed = f", {logs['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in logs else ""
        return f"loss {logs['loss']:.4g}{speed}"
    values = {name.removeprefix("eval_"): value for name, value in logs.items() if name.startswith("eval_")}
    if not values:
        return ""
    scores = ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )
    return f"validation {scores}" + (f" ({logs['minutes']:.1f} minutes)" if "minutes" in logs else "")
