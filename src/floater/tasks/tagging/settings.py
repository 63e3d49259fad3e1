"""The settings of a tagging run: what a configuration file may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from floater.encodings import options
from floater.tasks.translation import model_settings
from floater.tasks.translation.model_settings import check_numbers
from floater.tasks.translation.settings import Flow
from floater.transformer import FloaterConfig
from floater.transformer.blocks import position_model


@dataclass(frozen=True)
class Data:
    """The sentences, and what a word becomes.

    Attributes:
        train: training sentences, a CoNLL-U file, plain or .gz.
        valid: validation sentences.
        min_count: words that are rarer in the training sentences count as unknown.
        suffix: letters at the end of an unknown word that tell it from others; 0 for one unknown word.
        max_tokens: longer training sentences (in words) are left out, and counted.
    """

    train: str
    valid: str
    min_count: int = 2
    suffix: int = 3
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        check_numbers(self, positive=("max_tokens",), min_count=1, suffix=0)


@dataclass(frozen=True)
class Model(model_settings.Model):
    """The Transformer and its position model.

    Attributes:
        position_options: its options; `labels`, where it has this one, is the number of relations.
        changes: what differs from the preset; there is no decoder.
    """

    preset: str = "tiny"
    position: str = "sinusoidal"
    max_length: int = 256

    def __post_init__(self) -> None:
        given = self.changes.given()
        if extra := [name for name in ("decoder_layers", "tie_word_embeddings") if name in given]:
            raise ValueError(f"changes: a tagger has no {extra[0]}")
        config = self.config(vocab_size=2)
        try:
            position_model(config, config.num_hidden_layers, "self")
        except (TypeError, ZeroDivisionError) as error:
            raise ValueError(f"position_options {self.position_options}: {error}") from error

    def config(self, vocab_size: int, tags: list[str] | None = None, relations: int = 1) -> FloaterConfig:
        """The Hugging Face configuration for a vocabulary of this size.

        Args:
            vocab_size: number of words.
            tags: names of the tags.
            relations: number of edge labels.
        """
        labels: dict[str, Any] = {"labels": relations} if "labels" in options(self.position) else {}
        names = tags or ["_"]
        return FloaterConfig.preset(
            self.preset,
            vocab_size=vocab_size,
            position=self.position,
            position_options=labels | self.position_options,
            training_length=self.max_length,
            id2label=dict(enumerate(names)),
            label2id={name: i for i, name in enumerate(names)},
            **self.changes.given(),
        )


@dataclass(frozen=True)
class Training:
    """Optimisation.

    Attributes:
        lr: peak learning rate.
        warmup: steps of linear warm-up from initial_lr, before the inverse square root.
        initial_lr: learning rate at the first step.
        max_tokens: words in a batch: padded length times sentences.
        epochs: passes over the data, where max_steps is null.
        max_steps: steps of the training, instead of epochs.
        label_smoothing: share of the probability spread over the tags.
        betas: of Adam.
        eps: of Adam.
        weight_decay: of AdamW; 0 is Adam.
        clip: largest norm of the gradient; 0 means no clipping.
        seed: of the weights, the dropout and the order of the batches.
        log_every: steps between lines of the log (loss, learning rate, words per second).
        save_every: epochs or steps between checkpoints, each with a validation: "epoch", or a number of
            steps; with flow.update_every above 1, a multiple of it.
        keep: checkpoints kept; the average needs as many.
        average: the last checkpoints whose mean is the final model; 0 takes the best validation accuracy.
        bf16: bfloat16 autocast.
        flow: schedule of the flow's parameters.
    """

    lr: float = 2e-3
    warmup: int = 200
    initial_lr: float = 1e-7
    max_tokens: int = 1000
    epochs: int = 10
    max_steps: int | None = None
    label_smoothing: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 0.0
    seed: int = 1
    log_every: int = 50
    save_every: int | Literal["epoch"] = "epoch"
    keep: int = 5
    average: int = 0
    bf16: bool = False
    flow: Flow = field(default_factory=Flow)

    def __post_init__(self) -> None:
        positive = ("lr", "eps", "max_tokens", "max_steps", "log_every", "save_every")
        least = dict.fromkeys(("initial_lr", "label_smoothing", "weight_decay", "clip", "seed", "average"), 0)
        check_numbers(self, positive=positive, **least, warmup=1, epochs=1, keep=1)
        lowest = self.lr * min(1.0, self.flow.lr_multiplier)
        if self.initial_lr > lowest:
            raise ValueError(f"initial_lr is {self.initial_lr}, above the peak rate {lowest:g}")
        if self.label_smoothing > 1 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("label_smoothing must be from 0 to 1, and betas at least 0 and below 1")
        if self.average > self.keep:
            raise ValueError(f"average is {self.average}, but only {self.keep} checkpoints are kept")


@dataclass(frozen=True)
class TaggingSettings:
    """A tagging run.

    Attributes:
        run: directory for the configuration, vocabulary, log, checkpoints and final model.
        task: "tagging".
        data: where the sentences come from.
        model: the Transformer and its position model.
        training: optimisation.
    """

    run: str
    data: Data
    task: Literal["tagging"] = "tagging"
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        save, update = self.training.save_every, self.training.flow.update_every
        flows = "refresh_every" in options(self.model.position)
        if flows and update > 1 and (save == "epoch" or save % update):
            raise ValueError(
                f"training.save_every is {save}; with flow.update_every {update} it must be a multiple of "
                f"{update} steps, or a resumed run would not equal a whole one"
            )
