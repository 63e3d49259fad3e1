"""Progress of a training: a progress bar on a terminal, lines otherwise."""

import sys
from typing import Any

from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerControl, TrainerState, TrainingArguments


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
        self.current_step = state.global_step
        if state.is_world_process_zero:
            self.training_bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                unit="step",
                dynamic_ncols=True,
                disable=None,  # shown only on a terminal
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
