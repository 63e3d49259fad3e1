"""Training settings under the names of `transformers.TrainingArguments` where these have one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from floater.lab.training.other_arguments import ARGUMENTS, check_others


def check_numbers(section: Any, *, positive: tuple[str, ...] = (), **least: float) -> None:
    """Refuse numbers of a section of settings that are too small, not a number or infinite.

    Args:
        section: object with the numbers as attributes; null and strings are not checked.
        positive: names of the numbers that must be above 0.
        least: smallest valid values of other numbers, by name.

    Raises:
        ValueError: a number is out of its range; the message names the number, its value and its bound.

    Example:
        >>> check_numbers(Flow(), lr_multiplier=2)
        Traceback (most recent call last):
        ValueError: lr_multiplier is 1.0; it must be at least 2
    """
    for name, low in (dict.fromkeys(positive, 0) | least).items():
        value = getattr(section, name)
        if not isinstance(value, int | float):  # null
            continue
        if not (low < value if name in positive else low <= value) or value == math.inf:
            bound = "positive" if name in positive else f"at least {low}"
            bound = bound if math.isfinite(value) else f"a finite number, {bound}"
            raise ValueError(f"{name} is {value}; it must be {bound}")


def first_changed(section: Any, names: Collection[str]) -> str | None:
    """Return the first of some settings of a section that differs from its default; None if none does.

    Example:
        >>> first_changed(Flow(update_every=2), ["lr_multiplier", "update_every"])
        'update_every'
    """
    settings = [each.name for each in dataclasses.fields(section) if each.name in names]
    return next((name for name in settings if getattr(section, name) != default_of(section, name)), None)


def default_of(section: Any, name: str) -> Any:
    """Return the default of a setting of a section."""
    setting = section.__dataclass_fields__[name]
    factory = setting.default_factory
    return setting.default if factory is dataclasses.MISSING else factory()


def check_read(section: Any, names: Collection[str], reader: str, prefix: str = "") -> None:
    """Refuse settings that differ from their defaults, and that nothing reads beside the other settings.

    Args:
        section: section of the settings.
        names: names of the settings that are not read.
        reader: noun for what would read them, for the message.
        prefix: name of the section with a dot, for the message.

    Raises:
        ValueError: a setting differs from its default; the message names the setting, its value and the
            reader.

    Example:
        >>> check_read(Flow(update_every=2), ["update_every"], "a flow", "flow.")
        Traceback (most recent call last):
        ValueError: flow.update_every is 2, which only a flow reads; leave it out, or at 1
    """
    if (name := first_changed(section, names)) is not None:
        value, default = getattr(section, name), default_of(section, name)
        raise ValueError(
            f"{prefix}{name} is {value!r}, which only {reader} reads; leave it out, or at {default!r}"
        )


SchedulerName = Literal[
    "inverse_sqrt",
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant_with_warmup",
    "constant",
]


@dataclass(frozen=True)
class Flow:
    """Schedule of the flow's parameters (Liu et al. 2020, section 4.4).

    Attributes:
        lr_multiplier: learning rate of the flow, as a multiple of that of the other parameters.
        update_every: number of steps between updates of the flow. An update uses the mean gradient of these
            steps, and save_steps must be a multiple of it.
    """

    lr_multiplier: float = 1.0
    update_every: int = 1

    def __post_init__(self) -> None:
        check_numbers(self, positive=("lr_multiplier",), update_every=1)


@dataclass(frozen=True)
class TrainingSettings:
    """Training settings; the defaults are those of Liu et al. 2020 (repository) and Vaswani et al. 2017.

    The fields of `transformers.TrainingArguments` in `ALLOWED` may be added; the others, such as output_dir,
    are determined by the run.

    Attributes:
        learning_rate: learning rate at the end of the warm-up.
        lr_scheduler_type: schedule of the learning rate after its warm-up, by the names of Transformers:
            "inverse_sqrt", "linear", "cosine", "cosine_with_restarts" and "polynomial" (down to 0 at the last
            step), "constant_with_warmup", or "constant" without a warm-up.
        warmup_steps: number of steps of linear warm-up; a value below 1 is a share of all steps.
        initial_learning_rate: learning rate at the first step, from which the warm-up begins.
        max_tokens: largest number of tokens in a batch of one process, padding included.
        per_device_train_batch_size: number of examples in a batch of one process, which have about equal
            lengths. It replaces max_tokens.
        gradient_accumulation_steps: number of batches in a step of one process. The gradient of the step is
            the mean over all their tokens.
        batches_per_step: number of batches in a step of all processes together. It replaces
            gradient_accumulation_steps, which is then this number divided by the number of processes: any
            number of processes that divides it gives the same step, and a stopped run can resume with another
            number that reads as many batches in an epoch. Processes that do not divide the batches of an
            epoch read its first ones once more in its last step.
        num_train_epochs: number of passes over the data, if max_steps is null.
        max_steps: number of steps of the training. It replaces num_train_epochs.
        adam_beta1: decay rate of Adam's running mean of the gradients.
        adam_beta2: decay rate of Adam's running mean of the squared gradients.
        adam_epsilon: number that Adam adds to its denominator.
        weight_decay: decoupled weight decay (AdamW) of matrices; 0 is Adam.
        max_grad_norm: largest norm of the gradient of a step; 0 means no clipping.
        seed: random seed of the weights, the dropout and the order of the batches.
        eval_strategy: times of validation: after each "epoch", every eval_steps "steps", or "no"; null is
            "steps" if eval_steps is set, else "epoch".
        eval_steps: number of steps between validations.
        logging_steps: number of steps between entries of the log (loss, learning rate, tokens per second).
        early_stopping_patience: number of validations without a better score after which the training
            stops; 0 means never.
        stop_score: validation score that ends the training when it is reached, such as 100 (exact match);
            null means none.
        save_strategy: times of checkpoints: after each "epoch" or every save_steps "steps"; null is "steps"
            if save_steps is set, else "epoch", and another value than that is refused.
        save_steps: number of steps between checkpoints; with flow.update_every above 1, a multiple of it.
        save_total_limit: number of checkpoints that are kept, at least average_last.
        keep_steps: steps whose checkpoints are kept in addition, to fine-tune from them by name:
            model.path=RUN/checkpoint-100000. They must be multiples of save_steps.
        average_last: number of last checkpoints whose mean is the final model; 0 takes the checkpoint with
            the best validation.
        keep_best: whether the checkpoint with the best validation is saved as RUN/best, beside the mean that
            average_last takes; translation starts from it with training.warm_start=RUN/best.
        bf16: whether the forward pass computes in bfloat16 where PyTorch's autocast does.
        flow: schedule of the flow's parameters.
        others: other fields of `transformers.TrainingArguments`, which are written beside these settings.
    """

    learning_rate: float = 7e-4
    lr_scheduler_type: SchedulerName = "inverse_sqrt"
    warmup_steps: int | float = 4000
    initial_learning_rate: float = 1e-7
    max_tokens: int = 2000
    per_device_train_batch_size: int | None = None
    gradient_accumulation_steps: int = 1
    batches_per_step: int | None = None
    num_train_epochs: int = 30
    max_steps: int | None = None
    adam_beta1: float = 0.9
    adam_beta2: float = 0.98
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0
    seed: int = 1
    eval_strategy: Literal["epoch", "steps", "no"] | None = None
    eval_steps: int | None = None
    logging_steps: int = 50
    early_stopping_patience: int = 0
    stop_score: float | None = None
    save_strategy: Literal["epoch", "steps"] | None = None
    save_steps: int | None = None
    save_total_limit: int = 5
    keep_steps: list[int] = field(default_factory=list)
    average_last: int = 5
    keep_best: bool = False
    bf16: bool = False
    flow: Flow = field(default_factory=Flow)
    others: dict[str, Any] = field(default_factory=dict, metadata={"beside": ARGUMENTS})

    def __post_init__(self) -> None:
        positive = ("learning_rate", "adam_epsilon", "max_tokens", "max_steps", "logging_steps")
        if not self.seed < 2**32:
            raise ValueError(f"seed is {self.seed}; it must be below 2**32")
        least = dict.fromkeys(("initial_learning_rate", "weight_decay", "max_grad_norm", "seed"), 0)
        least |= dict.fromkeys(("early_stopping_patience", "average_last", "warmup_steps"), 0)
        least |= dict.fromkeys(("gradient_accumulation_steps", "num_train_epochs", "save_total_limit"), 1)
        least |= dict.fromkeys(("per_device_train_batch_size", "batches_per_step"), 1)
        check_numbers(self, positive=(*positive, "eval_steps", "save_steps"), **least)
        check_others(self.others, {each.name for each in dataclasses.fields(self)})
        if self.stop_score is not None and not math.isfinite(self.stop_score):  # no score would reach it
            raise ValueError(f"stop_score is {self.stop_score}; it must be a finite number, or null")
        for event, steps in (("eval", self.eval_steps), ("save", self.save_steps)):
            strategy = getattr(self, f"{event}_strategy")
            if strategy == "steps" and steps is None:
                raise ValueError(f"{event}_strategy is 'steps', which needs {event}_steps")
            if strategy in ("epoch", "no") and steps is not None:
                raise ValueError(
                    f"{event}_steps is {steps}, and {event}_strategy '{strategy}' would not read it; set "
                    f"{event}_strategy to 'steps', or {event}_steps to null"
                )
        if self.warmup_steps and self.lr_scheduler_type == "constant":
            raise ValueError(
                f"warmup_steps is {self.warmup_steps}, and lr_scheduler_type 'constant' has none; use "
                "'constant_with_warmup'"
            )
        if self.warmup_steps == 0 and self.lr_scheduler_type == "inverse_sqrt":
            raise ValueError("warmup_steps is 0; it must be at least 1 before an inverse square root")
        if self.warmup_steps > 1 and self.warmup_steps != int(self.warmup_steps):
            raise ValueError(
                f"warmup_steps is {self.warmup_steps}; it must be a number of steps, or a share below 1"
            )
        lowest = self.learning_rate * min(1.0, self.flow.lr_multiplier)
        if self.initial_learning_rate > lowest:
            raise ValueError(
                f"initial_learning_rate is {self.initial_learning_rate}, above the peak rate {lowest:g}"
            )
        for name in ("adam_beta1", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0 and below 1")
        if self.average_last > self.save_total_limit:
            raise ValueError(
                f"average_last is {self.average_last}, but only {self.save_total_limit} checkpoints are kept"
            )
        if self.batches_per_step is not None and self.gradient_accumulation_steps != 1:
            raise ValueError(
                f"batches_per_step is {self.batches_per_step} and gradient_accumulation_steps "
                f"{self.gradient_accumulation_steps}; give one of them"
            )
        for step in self.keep_steps:
            if not isinstance(self.saves, int) or step < 1 or step % self.saves:
                raise ValueError(
                    f"keep_steps has {step}, which is not a checkpoint: they are saved every {self.saves}; "
                    "set save_steps so that it divides it"
                )
        if self.evaluates == "no" and self.selects:
            raise ValueError(
                "early_stopping_patience, stop_score and average_last=0 need validation; eval_strategy is "
                "'no'"
            )
        if self.keep_best and not self.average_last:
            raise ValueError(
                "keep_best is for a mean of checkpoints; with average_last=0 the model is the best"
            )
        if (self.keep_best or not self.average_last) and not _falls_on(self.evaluates, self.saves):
            raise ValueError(
                f"{'keep_best' if self.keep_best else 'average_last=0'} takes the best validation's "
                f"checkpoint, but validation (each {self.evaluates}) does not fall on checkpoints (each "
                f"{self.saves}); make eval_steps a multiple of save_steps"
            )

    def accumulation(self, processes: int) -> int:
        """Return the number of batches of each process in a step.

        Args:
            processes: number of processes.

        Raises:
            ValueError: if batches_per_step is not a multiple of the number of processes.

        Example:
            >>> TrainingSettings(batches_per_step=16).accumulation(8)
            2
        """
        if self.batches_per_step is None:
            return self.gradient_accumulation_steps
        if self.batches_per_step % processes:
            raise ValueError(
                f"training.batches_per_step is {self.batches_per_step}, which {processes} processes cannot "
                "share; start a number of them that divides it"
            )
        return self.batches_per_step // processes

    @property
    def evaluates(self) -> int | str:
        """Return the steps between validations, "epoch", or "no"."""
        return _when(self.eval_strategy, self.eval_steps)

    @property
    def saves(self) -> int | str:
        """Return the steps between checkpoints, or "epoch"."""
        return _when(self.save_strategy, self.save_steps)

    @property
    def selects(self) -> bool:
        """Return whether validation chooses the checkpoint, or stops the training."""
        return not self.average_last or self.stops_early

    @property
    def stops_early(self) -> bool:
        """Return whether validation may stop the training."""
        return self.early_stopping_patience > 0 or self.stop_score is not None


def _when(strategy: str | None, steps: int | None) -> int | str:
    """Return the number of steps between two events, or their strategy."""
    return steps if steps is not None else strategy or "epoch"


@dataclass(frozen=True)
class SmoothedTrainingSettings(TrainingSettings):
    """Training settings with label smoothing.

    Attributes:
        label_smoothing_factor: share of the probability that is spread over all classes.
    """

    label_smoothing_factor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing_factor <= 1:
            factor = self.label_smoothing_factor
            raise ValueError(f"label_smoothing_factor is {factor}; it must be from 0 to 1")


def _falls_on(event: int | str, other: int | str) -> bool:
    """Return whether every step of an event is also a step of the other event."""
    return event % other == 0 if isinstance(event, int) and isinstance(other, int) else event == other


def check_trained_flow(training: TrainingSettings) -> None:
    """Refuse checkpoints between two updates of a flow.

    Args:
        training: the settings.

    Raises:
        ValueError: if a checkpoint would be saved between two updates.
    """
    save, update = training.saves, training.flow.update_every
    if update > 1 and (save == "epoch" or save % update):
        raise ValueError(
            f"training.save_steps is {save}; with flow.update_every {update} it must be a multiple of "
            f"{update} steps, or a resumed run would not equal a whole one"
        )
