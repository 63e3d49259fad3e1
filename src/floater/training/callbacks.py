"""Callbacks of every run: its log in a file, and early stopping."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from floater.training.files import write_json
from floater.training.run import LOG


class WholeLog(TrainerCallback):
    """Keep the whole log of a run in one JSON file."""

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Rewrite the file."""
        if state.is_world_process_zero:
            write_json(Path(str(args.output_dir)) / LOG, state.log_history)


class Patience(TrainerCallback):
    """Stop training after a number of validations without a better score.

    The decision depends only on the log, which checkpoints contain, so a resumed run stops at the same step
    as an uninterrupted one.

    Args:
        patience: number of validations; 0 never stops the training.
        metric: name in the log of the score by which checkpoints are compared.
        greater: True if higher scores are better.

    Example:
        >>> log = [{"eval_bleu": 1.0}, {"eval_bleu": 3.0}, {"loss": 2.0}, {"eval_bleu": 3.0}]
        >>> [Patience(count, "eval_bleu", greater=True).ends(log) for count in (1, 2, 0)]
        [True, False, False]
    """

    def __init__(self, patience: int, metric: str, greater: bool) -> None:
        self.patience, self.metric, self.greater = patience, metric, greater

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop the training if the patience is exhausted."""
        if self.ends(state.log_history):
            control.should_training_stop = control.should_save = True  # there may be no checkpoint yet

    def ends(self, log: Sequence[dict[str, float]]) -> bool:
        """Return whether the last `patience` validations are no better than an earlier one."""
        found = [entry[self.metric] for entry in log if self.metric in entry]
        best = (max if self.greater else min)(found, default=0.0)
        return bool(found) and 0 < self.patience < len(found) - found.index(best)
