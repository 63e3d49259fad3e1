"""The Hugging Face Trainer of a language modelling run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import (
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from floater.tasks.causal import causal_loss
from floater.tasks.language_modeling.data import (
    Example,
    begin_id,
    causal_batch,
    masked_batch,
    stream_batch,
)
from floater.training import smoothed_loss
from floater.training.run_trainer import RunTrainer
from floater.transformer.head import has_head, head_at
from floater.transformer.memory import Memory
from floater.transformer.outputs import IGNORED


class LanguageModelTrainer(RunTrainer):
    """A `RunTrainer` that masks anew in each epoch, or predicts next tokens, with or without a memory.

    The memory begins anew at each epoch and each checkpoint of the schedule, so that a resumed run ends as a
    whole one. A checkpoint between these holds it.

    Args:
        settings: of a run that predicts tokens; its `objective` is "causal" or "masked".
        tokenizer: the vocabulary, with <mask> for a masked objective.
        memory: tokens that the blocks remember.
        **kwargs: as for `RunTrainer`.
    """

    def __init__(
        self, *, settings: Any, tokenizer: PreTrainedTokenizerFast, memory: int = 0, **kwargs: Any
    ) -> None:
        causal = settings.objective == "causal"
        self.memory = Memory(memory) if memory else None
        loss, collator = (causal_loss, self._causal) if causal else (None, self._masked)
        if self.memory is not None:
            loss, collator = smoothed_loss(0.0), self._streams
            kwargs["callbacks"] = [Forget(self.memory)]
        self.settings, self.tokenizer = settings, tokenizer
        super().__init__(
            training=settings.training,
            metric="loss",
            greater=False,
            compute_loss_func=loss,
            data_collator=collator,
            **kwargs,
        )
        if self.memory is not None:
            self._loss_shifts_labels = False  # a stream's first label counts: it is that of the first logits

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Compute the loss of a batch, after what the memory holds of those before it."""
        if self.memory is not None:
            inputs = inputs | {"memory": self.memory}
        whole = self.accelerator.unwrap_model(model)
        if self.settings.objective == "causal" or not has_head(whole):
            return super().compute_loss(model, inputs, *args, **kwargs)
        places = inputs["labels"] != IGNORED
        inputs = inputs | {"labels": inputs["labels"][places].unsqueeze(0)}
        with head_at(whole, places):
            return super().compute_loss(model, inputs, *args, **kwargs)

    def step_state(self) -> dict[str, Any]:
        """Return the state as `FloaterTrainer` does, with the memory."""
        held = {} if self.memory is None else {"memory": self.memory.state()}
        return super().step_state() | held

    def load_step_state(self, file: Path, saved: dict[str, Any]) -> None:
        """Load the state as `FloaterTrainer` does, with the memory."""
        super().load_step_state(file, saved)
        if self.memory is not None:
            self.memory.load_state(saved.get("memory"))

    def forget_steps(self) -> None:
        """Forget as `FloaterTrainer` does, and the memory, too."""
        super().forget_steps()
        if self.memory is not None:
            self.memory.forget()

    def _streams(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        return stream_batch(examples, pad=int(self.tokenizer.pad_token_id))

    def _causal(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        pad, begin = int(self.tokenizer.pad_token_id), begin_id(self.tokenizer)
        return causal_batch(examples, pad=pad, begin=begin)

    def _masked(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        # no random number of torch: a batch that is made ahead of a checkpoint is made again after it
        seed = self.settings.training.seed, self.sampler.epoch
        return masked_batch(examples, self.settings.masking, self.tokenizer, *seed)


class Forget(TrainerCallback):
    """Begin a memory anew at each epoch."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forget as the streams start again, unless the training is resumed within the epoch."""
        if state.epoch is None or state.epoch == int(state.epoch):
            self.memory.forget()
