"""A progress bar with tokens per second and time left."""

from typing import Any

from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerControl, TrainerState, TrainingArguments


class TrainingProgress(ProgressCallback):
    """Show the steps done, the time left, and the last logged loss and tokens per second.

    Time left counts the steps of this process only, so it is right after a resumption too. Other
    logs, such as an evaluation's, are written as lines above the bar.

    Example:
        >>> TrainingProgress().training_bar is None
        True
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar at the step that training starts from."""
        self.current_step = state.global_step
        if state.is_world_process_zero:
            self.training_bar = tqdm(
                total=state.max_steps, initial=state.global_step, unit="step", dynamic_ncols=True
            )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Show a training log behind the bar and any other above it."""
        if self.training_bar is None or not logs or "loss" not in logs:
            super().on_log(args, state, control, logs=logs, **kwargs)  # type: ignore[no-untyped-call]
            return
        shown = {"loss": f"{logs['loss']:.4g}"}
        if "tokens_per_second" in logs:
            shown["tokens/s"] = f"{logs['tokens_per_second']:,.0f}"
        self.training_bar.set_postfix(shown)
