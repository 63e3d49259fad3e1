"""The Hugging Face Trainer of a language modelling run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from floater.lab.tasks.language_modeling.head import has_head, head_at
from floater.lab.training.run_trainer import RunTrainer
from floater.transformer.memory import Memory
from floater.transformer.outputs import IGNORED


class LanguageModelTrainer(RunTrainer):
    """A `RunTrainer` of a language model, with or without a memory; a head is applied only at masked tokens.

    The memory is cleared at each epoch and each checkpoint of the schedule, so that a resumed run has the
    same result as an uninterrupted one. Any other checkpoint contains the memory.

    Args:
        memory: number of tokens in the memory of the blocks.
        **kwargs: arguments of `RunTrainer`; without a `compute_loss_func`, labels are those of masked tokens.
    """

    def __init__(self, *, memory: int = 0, **kwargs: Any) -> None:
        self.memory = Memory(memory) if memory else None
        self.masked = kwargs["compute_loss_func"] is None
        if self.memory is not None:
            kwargs["callbacks"] = [Forget(self.memory)]
        super().__init__(**kwargs)
        if self.memory is not None:
            self._loss_shifts_labels = False  # labels of streams are aligned with the logits

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Compute the loss of a batch, with the memory of the batches before it."""
        if self.memory is not None:
            inputs = inputs | {"memory": self.memory}
        whole = self.accelerator.unwrap_model(model)
        if not self.masked or not has_head(whole):
            return super().compute_loss(model, inputs, *args, **kwargs)
        mask = inputs["labels"] != IGNORED
        inputs = inputs | {"labels": inputs["labels"][mask].unsqueeze(0)}
        with head_at(whole, mask):
            return super().compute_loss(model, inputs, *args, **kwargs)

    def step_state(self) -> dict[str, Any]:
        """Return the state of `RunTrainer` and the memory."""
        held = {} if self.memory is None else {"memory": self.memory.state()}
        return super().step_state() | held

    def load_step_state(self, file: Path, saved: dict[str, Any]) -> None:
        """Load the state of `RunTrainer` and the memory."""
        super().load_step_state(file, saved)
        if self.memory is not None:
            self.memory.load_state(saved.get("memory"))

    def forget_steps(self) -> None:
        """Clear the state of `RunTrainer` and the memory."""
        super().forget_steps()
        if self.memory is not None:
            self.memory.forget()


class Forget(TrainerCallback):
    """Clear a memory at the beginning of each epoch."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Clear the memory when the streams restart, unless the training is resumed within the epoch."""
        if state.epoch is None or state.epoch == int(state.epoch):
            self.memory.forget()
