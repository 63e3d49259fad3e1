"""The settings of a translation run: what a configuration file may say."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from floater.encodings import options
from floater.tasks.bpe import BYTES, SPECIALS
from floater.tasks.translation.model_settings import Changes, Model, check_numbers

__all__ = ["Changes", "Data", "Decoding", "Flow", "Model", "Training", "TranslationSettings"]


@dataclass(frozen=True)
class Data:
    """Where the sentences come from: text files, a Hugging Face data set, or the built-in corpus.

    Attributes:
        source: source language code, as in "en".
        target: target language code, as in "de".
        train_source: training sentences, one a line, plain or .gz; a file or a list of files.
        train_target: their translations, line by line.
        valid_source: validation sentences.
        valid_target: their translations.
        dataset: name of a Hugging Face data set with a "translation" column, instead of files.
        dataset_config: its configuration, as in "de-en".
        builtin: training pairs of the built-in corpus (0 for none), instead of files.
        builtin_seed: seed of the built-in corpus.
        max_tokens: longer training pairs (in BPE tokens) are left out, and counted.
        vocabulary: a run directory or tokenizer.json to load; by default one is trained.
        vocabulary_size: joint BPE tokens to train; at least 259, the bytes and the special tokens.
    """

    source: str = "en"
    target: str = "de"
    train_source: str | list[str] | None = None
    train_target: str | list[str] | None = None
    valid_source: str | list[str] | None = None
    valid_target: str | list[str] | None = None
    dataset: str | None = None
    dataset_config: str | None = None
    builtin: int = 0
    builtin_seed: int = 0
    max_tokens: int | None = None
    vocabulary: str | None = None
    vocabulary_size: int = 32768

    def __post_init__(self) -> None:
        check_numbers(self, positive=("max_tokens",), builtin=0, vocabulary_size=BYTES + len(SPECIALS))
        files = (self.train_source, self.train_target, self.valid_source, self.valid_target)
        given = [self.dataset is not None, self.builtin > 0, any(file is not None for file in files)]
        if sum(given) != 1:
            raise ValueError("give exactly one of: text files (train_*, valid_*), dataset, builtin")
        if given[2] and any(file is None for file in files):
            raise ValueError("give all of train_source, train_target, valid_source and valid_target")


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
class Training:
    """Optimisation. Defaults are those of Liu et al. 2020 (their repository) and Vaswani et al. 2017.

    Attributes:
        lr: peak learning rate.
        warmup: steps of linear warm-up from initial_lr, before the inverse square root.
        initial_lr: learning rate at the first step.
        max_tokens: tokens in a batch: padded length of the longer side times sentences.
        accumulation: batches in a step of one process; its gradient is the mean over all their tokens.
        epochs: passes over the data, where max_steps is null.
        max_steps: steps of the training, instead of epochs.
        label_smoothing: share of the probability spread over the vocabulary.
        betas: of Adam.
        eps: of Adam.
        weight_decay: of AdamW; 0 is Adam.
        clip: largest norm of the gradient; 0 means no clipping.
        seed: of the weights, the dropout and the order of the batches.
        validate_every: steps between validations, "epoch", or "never".
        log_every: steps between lines of the log (loss, learning rate, tokens per second).
        patience: validations without a better BLEU before training stops; 0 means never.
        validate_beam: beam of the validation translations.
        samples: validation translations shown each time.
        save_every: steps between checkpoints, or "epoch"; with flow.update_every above 1, a multiple of it.
        keep: checkpoints kept; the average needs as many.
        average: the last checkpoints whose mean is the final model; 0 takes the best validation BLEU.
        warm_start: a finished run whose weights and vocabulary this one starts from (protocol B.2).
        bf16: bfloat16 autocast.
        flow: schedule of the flow's parameters.
    """

    lr: float = 7e-4
    warmup: int = 4000
    initial_lr: float = 1e-7
    max_tokens: int = 2000
    accumulation: int = 1
    epochs: int = 30
    max_steps: int | None = None
    label_smoothing: float = 0.1
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 0.0
    seed: int = 1
    validate_every: int | Literal["epoch", "never"] = "epoch"
    log_every: int = 50
    patience: int = 0
    validate_beam: int = 1
    samples: int = 3
    save_every: int | Literal["epoch"] = "epoch"
    keep: int = 5
    average: int = 5
    warm_start: str | None = None
    bf16: bool = False
    flow: Flow = field(default_factory=Flow)

    def __post_init__(self) -> None:
        positive = ("lr", "eps", "max_tokens", "max_steps", "validate_every", "log_every", "save_every")
        least = dict.fromkeys(("initial_lr", "label_smoothing", "weight_decay", "clip", "seed"), 0)
        least |= dict.fromkeys(("patience", "samples", "average"), 0)
        least |= dict.fromkeys(("warmup", "accumulation", "epochs", "validate_beam", "keep"), 1)
        check_numbers(self, positive=positive, **least)
        lowest = self.lr * min(1.0, self.flow.lr_multiplier)
        if self.initial_lr > lowest:
            raise ValueError(f"initial_lr is {self.initial_lr}, above the peak rate {lowest:g}")
        if self.label_smoothing > 1 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("label_smoothing must be from 0 to 1, and betas at least 0 and below 1")
        if self.average > self.keep:
            raise ValueError(f"average is {self.average}, but only {self.keep} checkpoints are kept")
        if self.validate_every == "never" and (self.patience or not self.average):
            raise ValueError("patience and average=0 need validation; validate_every is 'never'")
        if not self.average and not _falls_on(self.validate_every, self.save_every):
            raise ValueError(
                f"average=0 takes the best validation's checkpoint, but validate_every {self.validate_every} "
                f"is no multiple of save_every {self.save_every}"
            )


def _falls_on(event: int | str, other: int | str) -> bool:
    """Whether every step of an event is a step of the other, too."""
    return event % other == 0 if isinstance(event, int) and isinstance(other, int) else event == other


@dataclass(frozen=True)
class Decoding:
    """How translations are searched for.

    Attributes:
        beam: hypotheses kept.
        length_penalty: exponent of the length that scores are divided by.
        max_ratio: a translation ends after max_ratio x source tokens + 50 at the latest, and this is said.
        max_tokens: source tokens in a batch, times the beam.
    """

    beam: int = 4
    length_penalty: float = 0.6
    max_ratio: float = 2.0
    max_tokens: int = 8192

    def __post_init__(self) -> None:
        check_numbers(self, positive=("max_ratio", "max_tokens"), beam=1)
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty is {self.length_penalty}; it must be finite")


@dataclass(frozen=True)
class TranslationSettings:
    """A translation run.

    Attributes:
        run: directory for the configuration, vocabulary, log, checkpoints and final model.
        task: "translation".
        data: where the sentences come from.
        model: the Transformer and its position model.
        training: optimisation.
        decoding: how translations are searched for.
    """

    run: str
    data: Data
    task: Literal["translation"] = "translation"
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)
    decoding: Decoding = field(default_factory=Decoding)

    def __post_init__(self) -> None:
        if "refresh_every" not in options(self.model.position):
            return
        save, update = self.training.save_every, self.training.flow.update_every
        if update > 1 and (save == "epoch" or save % update):
            raise ValueError(
                f"training.save_every is {save}; with flow.update_every {update} it must be a multiple of "
                f"{update} steps, or a resumed run would not equal a whole one"
            )
