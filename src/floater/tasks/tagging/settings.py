"""The settings of a tagging run: what a configuration file may say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from floater.encodings import options
from floater.tasks import settings
from floater.tasks.settings import Optimisation, check_flow, check_numbers
from floater.transformer import FloaterConfig

__all__ = ["Data", "Model", "TaggingSettings", "Training"]


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
class Model(settings.Model):
    """The Transformer and its position model.

    Attributes:
        position_options: its options; the edge labels of a model that has an option `labels` are the
            relations, unless it is given.
    """

    preset: str = "tiny"
    position: str = "sinusoidal"
    max_length: int = 256

    def config(self, vocab_size: int, tags: Sequence[str] = (), relations: int = 1) -> FloaterConfig:
        """The Hugging Face configuration for a vocabulary of this size, with the names of the tags."""
        config = super().config(vocab_size)
        config.id2label = dict(enumerate(tags))
        config.label2id = {tag: i for i, tag in enumerate(tags)}
        if "labels" in options(self.position):
            config.position_options = {"labels": relations} | self.position_options
        return config


@dataclass(frozen=True)
class Training(Optimisation):
    """Optimisation; the best validation is that of the highest accuracy.

    Attributes:
        label_smoothing: share of the probability spread over the tags.
    """

    lr: float = 2e-3
    warmup: int | float = 200
    max_tokens: int = 1000
    epochs: int = 10
    average: int = 0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing is {self.label_smoothing}; it must be from 0 to 1")


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
        check_flow(self.model, self.training)
