"""Fine-tuning a checkpoint, from the settings of a task to the directory of a run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from accelerate import PartialState
from transformers import PreTrainedModel, PreTrainedTokenizerFast, set_seed

from floater.flow import FlowEncoder
from floater.tasks.finetuning.checkpoint import Head, load_tokenizer, start
from floater.tasks.finetuning.features import Features, collate, loss, predict
from floater.tasks.finetuning.settings import Checkpoint, Plug, Training
from floater.tasks.optimisation import check_schedule, flow_parameters
from floater.tasks.run import Say, begin_run
from floater.tasks.settings import Optimisation, check_trained_flow
from floater.tasks.text import DataError
from floater.tasks.trainer import TaskTrainer

Metrics = dict[str, float]


class Settings(Protocol):
    """The settings of a fine-tuning task."""

    @property
    def run(self) -> str: ...

    @property
    def task(self) -> str: ...

    @property
    def model(self) -> Checkpoint: ...

    @property
    def plug(self) -> Plug: ...

    @property
    def training(self) -> Training: ...


@dataclass(frozen=True)
class Parts:
    """What a task makes of its data with a tokenizer.

    Args:
        examples: encoded training examples, with labels.
        valid: encoded validation examples.
        measure: what a validation of a model finds, by name.
        best: the metric whose best validation is kept.
        greater: whether more of it is better.
        final: what is said of the final model, if not what a validation finds.
    """

    examples: Features
    valid: Sequence[Features]
    measure: Callable[[PreTrainedModel], Metrics]
    best: str
    greater: bool
    final: Callable[[PreTrainedModel], dict[str, Any]] | None = None


class FineTuner(TaskTrainer):
    """A `TaskTrainer` over encoded examples.

    Args:
        parts: of the task.
        tokenizer: of the checkpoint.
        **kwargs: as for `TaskTrainer`.
    """

    def __init__(self, *, parts: Parts, tokenizer: PreTrainedTokenizerFast, **kwargs: Any) -> None:
        self.metric, self.greater, self.measure = parts.best, parts.greater, parts.measure
        super().__init__(
            lengths=parts.examples.lengths,
            train_dataset=parts.examples,
            data_collator=functools.partial(collate, tokenizer=tokenizer),
            compute_loss_func=loss,
            **kwargs,
        )

    def validation(self, model: Any) -> Metrics:
        """What the task measures."""
        return self.measure(model)


def fine_tune(
    settings: Settings,
    run: Path,
    state: PartialState,
    say: Say,
    head: Head,
    prepare: Callable[[PreTrainedTokenizerFast], Parts],
) -> Path:
    """Fine-tune a checkpoint, or go on with a run that was stopped.

    A run that was killed and started again ends with the weights of one that was not, on one machine and
    as many processes. Nothing is written before settings, data and checkpoint are found good.

    Args:
        settings: of the run.
        run: its directory.
        state: the processes.
        say: where a person is told about the training.
        head: that the task puts on the checkpoint.
        prepare: encodes the data with the checkpoint's tokenizer.

    Returns:
        The run directory.

    Raises:
        DataError: if the checkpoint or the plug cannot be used, or an example is too long for the model.
    """
    with state.main_process_first():
        tokenizer = load_tokenizer(settings.model.path)
        parts = prepare(tokenizer)
        check_schedule(settings.training, parts.examples.lengths)
        for name, features in (("training", [parts.examples]), ("validation", parts.valid)):
            if cut := sum(part.cut for part in features):
                say(f"{cut:,} {name} texts cut at {features[0].limit}")
        set_seed(settings.training.seed)
        model = start(settings.model, settings.plug, head, tokenizer, say)
        check_flow(model, settings.training)
        for part in (parts.examples, *parts.valid):
            check_longest(model, part, tokenizer)
        begin_run(run, settings, tokenizer)
    trainer = FineTuner(parts=parts, tokenizer=tokenizer, training=settings.training, run=run, model=model)
    return trainer.finish(tokenizer, settings.training.average, parts.final or parts.measure, say)


def check_flow(model: PreTrainedModel, training: Optimisation) -> None:
    """Refuse settings with which the model's flow would be trained otherwise than is asked for.

    Raises:
        DataError: if checkpoints fall between two updates of the flow, or it is reused among the parts of a
            batch.
    """
    flow = flow_parameters(model)
    if any(parameter.requires_grad for name, parameter in model.named_parameters() if name in flow):
        every = max(part.refresh_every for part in model.modules() if isinstance(part, FlowEncoder))
        try:
            check_trained_flow(training, every, "plug.options")
        except ValueError as error:
            raise DataError(str(error)) from error


def check_longest(model: PreTrainedModel, examples: Features, tokenizer: PreTrainedTokenizerFast) -> None:
    """Let the model see the longest example, so that it may refuse it before the training.

    Raises:
        DataError: if the model has too few positions.
    """
    longest = max(examples.rows, key=lambda row: Features([row]).lengths[0])
    predict(model, Features([longest]), tokenizer)
