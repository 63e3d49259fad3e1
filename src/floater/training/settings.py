"""The settings of a training: optimizer, schedule, batches, checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal


def check_numbers(section: Any, *, positive: tuple[str, ...] = (), **least: float) -> None:
    """Refuse numbers of a section of settings that are too small, not a number or infinite.

    Args:
        section: has the numbers as attributes; null and texts pass.
        positive: names of those that must be above 0.
        least: the least value allowed of others, by name.

    Raises:
        ValueError: it names the number, its value and its bound.

    Example:
        >>> check_numbers(Flow(), lr_multiplier=2)
        Traceback (most recent call last):
        ValueError: lr_multiplier is 1.0; it must be at least 2
    """
    for name, low in (dict.fromkeys(positive, 0) | least).items():
        value = getattr(section, name)
        if not isinstance(value, int | float):  # "epoch", or null
            continue
        if not (low < value if name in positive else low <= value) or value == math.inf:
            bound = "positive" if name in positive else f"at least {low}"
            raise ValueError(f"{name} is {value}; it must be {bound}")


@dataclass(frozen=True)
class Flow:
    """How the flow's parameters are trained (Liu et al. 2020, section 4.4).

    Attributes:
        lr_multiplier: learning rate of the flow as a multiple of the rest's.
        update_every: steps between updates of the flow; the gradients between are averaged. save_every
            must be a multiple.
    """

    lr_multiplier: float = 1.0
    update_every: int = 1

    def __post_init__(self) -> None:
        check_numbers(self, positive=("lr_multiplier",), update_every=1)


@dataclass(frozen=True)
class TrainingSettings:
    """Optimisation. Defaults are those of Liu et al. 2020 (their repository) and Vaswani et al. 2017.

    Attributes:
        lr: peak learning rate.
        schedule: of the learning rate after its warm-up: "inverse_sqrt", "linear" (down to 0 at the last
            step), or "constant".
        warmup: steps of linear warm-up from initial_lr; below 1, a share of all steps.
        initial_lr: learning rate at the first step.
        max_tokens: tokens in a batch, padding included.
        batch_size: examples in a batch, of about equal length, instead of max_tokens.
        accumulation: batches in a step of one process; its gradient is the mean over all their tokens.
        epochs: passes over the data, where max_steps is null.
        max_steps: steps of the training, instead of epochs.
        betas: of Adam.
        eps: of Adam.
        weight_decay: of AdamW; 0 is Adam.
        clip: largest norm of the gradient; 0 means no clipping.
        seed: of the weights, the dropout and the order of the batches.
        validate_every: steps between validations, "epoch", or "never".
        log_every: steps between lines of the log (loss, learning rate, tokens per second).
        patience: validations without a better score before training stops; 0 means never.
        save_every: steps between checkpoints, or "epoch"; with flow.update_every above 1, a multiple of it.
        keep: checkpoints kept; the average needs as many.
        average: the last checkpoints whose mean is the final model; 0 takes the best validation's.
        bf16: bfloat16 autocast.
        flow: schedule of the flow's parameters.
    """

    lr: float = 7e-4
    schedule: Literal["inverse_sqrt", "linear", "constant"] = "inverse_sqrt"
    warmup: int | float = 4000
    initial_lr: float = 1e-7
    max_tokens: int = 2000
    batch_size: int | None = None
    accumulation: int = 1
    epochs: int = 30
    max_steps: int | None = None
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 0.0
    seed: int = 1
    validate_every: int | Literal["epoch", "never"] = "epoch"
    log_every: int = 50
    patience: int = 0
    save_every: int | Literal["epoch"] = "epoch"
    keep: int = 5
    average: int = 5
    bf16: bool = False
    flow: Flow = field(default_factory=Flow)

    def __post_init__(self) -> None:
        positive = ("lr", "eps", "max_tokens", "max_steps", "validate_every", "log_every", "save_every")
        if not self.seed < 2**32:
            raise ValueError(f"seed is {self.seed}; it must be below 2**32")
        least = dict.fromkeys(("initial_lr", "weight_decay", "clip", "seed"), 0)
        least |= dict.fromkeys(("patience", "average", "warmup"), 0)
        least |= dict.fromkeys(("accumulation", "epochs", "keep", "batch_size"), 1)
        check_numbers(self, positive=positive, **least)
        if self.warmup == 0 and self.schedule == "inverse_sqrt":
            raise ValueError("warmup is 0; it must be at least 1 before an inverse square root")
        if self.warmup > 1 and self.warmup != int(self.warmup):
            raise ValueError(f"warmup is {self.warmup}; it must be a number of steps, or a share below 1")
        lowest = self.lr * min(1.0, self.flow.lr_multiplier)
        if self.initial_lr > lowest:
            raise ValueError(f"initial_lr is {self.initial_lr}, above the peak rate {lowest:g}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are {self.betas}; they must be at least 0 and below 1")
        if self.average > self.keep:
            raise ValueError(f"average is {self.average}, but only {self.keep} checkpoints are kept")
        if self.validate_every == "never" and (self.patience or not self.average):
            raise ValueError("patience and average=0 need validation; validate_every is 'never'")
        if self.patience and self.validate_every == "epoch" and self.save_every != "epoch":
            raise ValueError(
                f"patience with validate_every 'epoch' and save_every {self.save_every}: a checkpoint at an "
                "epoch's end would not know the validation there; save by epoch, or validate by steps"
            )
        if not self.average and not _falls_on(self.validate_every, self.save_every):
            raise ValueError(
                f"average=0 takes the best validation's checkpoint, but validate_every {self.validate_every} "
                f"is no multiple of save_every {self.save_every}"
            )


def _falls_on(event: int | str, other: int | str) -> bool:
    """Whether every step of an event is a step of the other, too."""
    return event % other == 0 if isinstance(event, int) and isinstance(other, int) else event == other


def check_trained_flow(training: TrainingSettings, refresh_every: int, options: str) -> None:
    """Refuse what would train a flow otherwise than is asked for; see `check_flow`.

    Args:
        training: the settings.
        refresh_every: passes for which vectors are reused.
        options: where that is set, for messages.

    Raises:
        ValueError: as `check_flow`.
    """
    if refresh_every > 1 and training.accumulation > 1:
        raise ValueError(
            f"{options}.refresh_every is {refresh_every} and training.accumulation {training.accumulation}: "
            "passes are counted, so only some parts of a batch would train the flow; use flow.update_every"
        )
    save, update = training.save_every, training.flow.update_every
    if update > 1 and (save == "epoch" or save % update):
        raise ValueError(
            f"training.save_every is {save}; with flow.update_every {update} it must be a multiple of "
            f"{update} steps, or a resumed run would not equal a whole one"
        )
