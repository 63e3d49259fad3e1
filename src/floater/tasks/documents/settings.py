"""The settings of a run on documents: what a configuration file may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from floater.tasks import settings
from floater.tasks.documents.model import DocumentsConfig
from floater.tasks.settings import Optimisation, check_flow, check_numbers

__all__ = ["Data", "DocumentsSettings", "Model", "Training"]


@dataclass(frozen=True)
class Data:
    """The documents, and what a word becomes.

    Attributes:
        train: a directory, or a .zip of one, with LABEL/NAME.txt for each document, a sentence a line.
        valid_share: share of the documents that are for validation, drawn by their paths.
        test_share: share that no training sees (floater evaluate --part test).
        split_seed: another one draws other parts.
        min_count: words that are rarer in the training documents count as unknown.
        max_words: a longer sentence becomes several, of so many words.
    """

    train: str
    valid_share: float = 0.1
    test_share: float = 0.2
    split_seed: int = 0
    min_count: int = 5
    max_words: int = 64

    def __post_init__(self) -> None:
        check_numbers(self, positive=("valid_share",), test_share=0, split_seed=0, min_count=1, max_words=1)
        if not self.valid_share + self.test_share < 1:
            raise ValueError(
                f"valid_share {self.valid_share} and test_share {self.test_share} leave nothing for training"
            )


@dataclass(frozen=True)
class Model(settings.Model):
    """The two Transformers and the position model of the sentence level.

    Attributes:
        clock: how the positions of sentences advance: by the "length" of the sentence before, in mean lengths
            of the training set, or by one ("index").
        word_layers: blocks of the word level.
        word_position: name of its position model.
        word_position_options: its options.
        max_length: mean sentences in a training document: the span of a starting flow; or, on the clock
            "index", the size of a table of positions.
    """

    preset: str = "tiny"
    max_length: int = 128
    clock: Literal["length", "index"] = "length"
    word_layers: int = 1
    word_position: str = "sinusoidal"
    word_position_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, positive=("word_layers",))
        try:
            _ = self.words
        except ValueError as error:
            raise ValueError(f"word_position: {error}") from error

    @property
    def words(self) -> settings.Model:
        """The Transformer of the word level."""
        return settings.Model(
            self.preset, self.word_position, self.word_position_options, changes=self.changes
        )

    def config(self, vocab_size: int, **found: Any) -> DocumentsConfig:
        """The Hugging Face configuration with what the training set says; see `DocumentsConfig`."""
        own = ("clock", "word_layers", "word_position", "word_position_options")
        return DocumentsConfig.preset(
            self.preset, **self.fields(vocab_size), **{name: getattr(self, name) for name in own}, **found
        )


@dataclass(frozen=True)
class Training(Optimisation):
    """Optimisation; the best validation is that of the highest accuracy.

    Attributes:
        max_tokens: words in a batch.
    """

    lr: float = 1e-3
    warmup: int | float = 100
    max_tokens: int = 8192
    epochs: int = 5
    average: int = 0


@dataclass(frozen=True)
class DocumentsSettings:
    """A run on documents.

    Attributes:
        run: directory for the configuration, vocabulary, log, checkpoints and final model.
        task: "documents".
        data: where the documents come from.
        model: the two Transformers and the position model of the sentence level.
        training: optimisation.
    """

    run: str
    data: Data
    task: Literal["documents"] = "documents"
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        for level in (self.model, self.model.words):
            check_flow(level, self.training)
