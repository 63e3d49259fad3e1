"""The settings of a translation run: what a configuration file may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from floater.encodings import build
from floater.transformer import PRESETS, FloaterConfig


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
        vocabulary_size: joint BPE tokens to train.
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
        files = (self.train_source, self.train_target, self.valid_source, self.valid_target)
        given = [self.dataset is not None, self.builtin > 0, any(file is not None for file in files)]
        if sum(given) != 1:
            raise ValueError("data needs exactly one of: text files (train_*, valid_*), dataset, builtin")
        if given[2] and any(file is None for file in files):
            raise ValueError("data needs all of train_source, train_target, valid_source and valid_target")


@dataclass(frozen=True)
class Model:
    """The Transformer and its position model.

    Attributes:
        preset: named size: transformer-base, transformer-big, small or tiny.
        position: name of the position model (see `floater models`).
        position_options: its options.
        max_length: training length in tokens: the table of learned positions, the span of a starting flow.
        changes: fields of FloaterConfig that differ from the preset, as in {dropout: 0.3}.
    """

    preset: str = "transformer-base"
    position: str = "floater"
    position_options: dict[str, Any] = field(default_factory=dict)
    max_length: int = 1024
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = self.config(vocab_size=8)
        for site in ("self", "decoder", "memory"):
            build(
                self.position,
                dim=config.hidden_size,
                heads=config.num_attention_heads,
                layers=config.num_hidden_layers,
                max_length=self.max_length,
                site=site,
                **self.position_options,
            )

    def config(self, vocab_size: int) -> FloaterConfig:
        """The Hugging Face configuration for a vocabulary of this size."""
        known = set(FloaterConfig.__dataclass_fields__) | set(PRESETS["tiny"])
        for name in self.changes:
            if name not in known:
                raise ValueError(f"unknown field '{name}' in model.changes; FloaterConfig has no such field")
        return FloaterConfig.preset(
            self.preset,
            vocab_size=vocab_size,
            position=self.position,
            position_options=dict(self.position_options),
            training_length=self.max_length,
            is_encoder_decoder=True,
            **self.changes,
        )


@dataclass(frozen=True)
class Flow:
    """How the flow's parameters are trained (Liu et al. 2020, section 4.4).

    Attributes:
        lr_multiplier: learning rate of the flow as a multiple of the rest's.
        update_every: steps between updates of the flow; the gradients between are averaged.
    """

    lr_multiplier: float = 1.0
    update_every: int = 1


@dataclass(frozen=True)
class Training:
    """Optimisation. Defaults are those of Liu et al. 2020 (their repository) and Vaswani et al. 2017.

    Attributes:
        lr: peak learning rate.
        warmup: steps of linear warm-up from initial_lr, before the inverse square root.
        initial_lr: learning rate at the first step.
        max_tokens: tokens in a batch: padded length of the longer side times sentences.
        accumulation: batches whose gradients are summed in a step.
        epochs: most passes over the data.
        max_steps: most steps; by default the epochs decide.
        label_smoothing: share of the probability spread over the vocabulary.
        betas: of Adam.
        eps: of Adam.
        weight_decay: of AdamW; 0 is Adam.
        clip: largest norm of the gradient; 0 means no clipping.
        seed: of the weights, the dropout and the order of the batches.
        validate_every: steps between validations, "epoch", or "never".
        patience: validations without a better BLEU before training stops; 0 means never.
        validate_beam: beam of the validation translations.
        samples: validation translations shown each time.
        save_every: steps between checkpoints, or "epoch".
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
        if self.average > self.keep:
            raise ValueError(f"training.average is {self.average}, but only {self.keep} checkpoints are kept")
        if self.validate_every == "never" and (self.patience or not self.average):
            raise ValueError("training.patience and training.average=0 need validation")
        for name in ("lr", "warmup", "max_tokens", "accumulation", "epochs", "keep"):
            if getattr(self, name) <= 0:
                raise ValueError(f"training.{name} is {getattr(self, name)}; it must be positive")


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
