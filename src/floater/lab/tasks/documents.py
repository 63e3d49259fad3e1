"""Hierarchical documents: a Transformer over sentences whose positions advance by their lengths."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from floater.errors import DataError
from floater.lab.tasks import settings
from floater.lab.tasks.corpora.documents import Document, is_labelled, read_documents
from floater.lab.tasks.corpora.rows import shown_value
from floater.lab.tasks.corpora.splits import with_split
from floater.lab.tasks.examples import Collate, Encoded, outputs, padded
from floater.lab.tasks.measurement import Measurement, accuracy
from floater.lab.tasks.prepared import Prepared, Splits
from floater.lab.tasks.registry import register
from floater.lab.tasks.settings import label_maps
from floater.lab.tasks.task import Task
from floater.lab.text.languages import lacks_spaces
from floater.lab.text.vocabulary import PAD, Vocabulary
from floater.lab.training.contents import Part
from floater.lab.training.named_files import file_of
from floater.lab.training.run import RunPath
from floater.lab.training.settings import TrainingSettings, check_numbers
from floater.transformer.documents import DocumentsConfig, FloaterForDocuments

logger = logging.getLogger(__name__)
_SAMPLE = 100
"""Number of documents in which spaces between words are looked for."""


@dataclass(frozen=True)
class Data(settings.SplitData):
    """Source of the documents, and the vocabulary of their words.

    Attributes:
        train: directory, or .zip of a directory, with LABEL/NAME.txt for each document, one sentence per
            line; or a table or a data set of Hugging Face, with a text and a label in each row.
        columns: names of the columns of a table, as in {text: review, label: stars}; by default guessed.
        min_count: minimum count of a word in the training documents; rarer words count as unknown.
        max_words: maximum number of words of a sentence; longer sentences are cut into several.
    """

    test_share: float = 0.2
    columns: dict[str, str] = field(default_factory=dict)
    min_count: int = 5
    max_words: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, positive=("valid_share",), min_count=1, max_words=1)


@dataclass(frozen=True)
class Model(settings.Model):
    """The two Transformers and the position model of the sentence level.

    Attributes:
        position_source: step from one sentence's position to the next: the "length" of the sentence before,
            in mean lengths of the training set, or one ("index").
        word_layers: number of blocks of the word level.
        word_position: name of the position model of the word level.
        word_position_options: options of the position model of the word level.
        max_length: mean number of sentences in a training document, which is the initial span of a flow; with
            "index", the size of a table of positions.
    """

    Config = DocumentsConfig
    output_embeddings = False

    preset: str = "tiny"
    max_length: int = 128
    position_source: Literal["length", "index"] = "length"
    word_layers: int = 1
    word_position: str = "sinusoidal"
    word_position_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, positive=("word_layers",))
        try:
            _ = self.levels
        except ValueError as error:
            raise ValueError(f"word_position: {error}") from error

    @property
    def levels(self) -> tuple[settings.Model, ...]:
        """Return the Transformers of the sentence and of the word level."""
        words = self.word_position, self.word_position_options
        return self, settings.Model(self.preset, *words, changes=self.changes)


@dataclass(frozen=True, kw_only=True)
class DocumentsSettings(settings.RunSettings):
    """A run on documents."""

    task: Literal["documents"] = "documents"
    data: Data
    model: Model = field(default_factory=Model)
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(
            learning_rate=1e-3, warmup_steps=100, max_tokens=8192, num_train_epochs=5, average_last=0
        )
    )

    def files_read(self) -> dict[str, Any]:
        source = file_of(self.data.train)
        return {"data.train": Part(source, ("**/*/*.txt",)) if is_labelled(source) else source}


@register("documents")
class Documents(Task):
    """Classification of documents of sentences."""

    Settings = DocumentsSettings
    metric, example, unit = "accuracy", "document", "words"
    metrics = ("accuracy", "document_loss")
    output = "labels"
    load_processor = staticmethod(Vocabulary.from_pretrained)

    def read(self, settings: DocumentsSettings) -> Splits:
        every = read_documents(self._train(settings), settings.data.columns)
        source, labels = settings.data.train, {document.label for document in every}
        if len(labels) < 2:
            label = f"the label '{min(labels)}'; a training needs two"
            raise DataError(f"{source}: all {len(every):,} documents have {label}")
        if lacks_spaces(" ".join(words) for document in every[:_SAMPLE] for words in document.sentences):
            logger.warning(
                "%s: the text has no spaces between words, so that each line is one word; separate them",
                source,
            )
        train, valid = (settings.data.part(every, part) for part in ("train", "valid"))
        if missing := {document.label for document in valid} - {document.label for document in train}:
            raise DataError(
                f"{source}: none of the {len(train):,} training documents has the label '{min(missing)}'; "
                "lower data.valid_share and test_share, choose another split_seed, or remove the label"
            )
        return Splits(train, valid)

    def _train(self, settings: DocumentsSettings) -> str:
        source = settings.data.train
        return source if is_labelled(Path(source)) else str(with_split(source, "train"))

    def toy(self, settings: DocumentsSettings) -> list[Document]:
        return [Document(f"{label}/1.txt", label, [["a"], ["b", "a"]]) for label in ("one", "other")]

    def make_processor(self, settings: DocumentsSettings, train: list[Document]) -> Vocabulary:
        words = [sentence for document in train for sentence in document.sentences]
        labels = (document.label for document in train)
        return Vocabulary.of(words, labels, min_count=settings.data.min_count, suffix=0)

    def encode(self, settings: Any, processor: Any, examples: Any, *, training: bool = False) -> Encoded:
        return encode(examples, processor, settings.data.max_words)

    def kind(self, settings: Any) -> Any:
        return FloaterForDocuments

    def build(self, settings: Any, processor: Vocabulary, train: Encoded) -> FloaterForDocuments:
        sentences = sum(len(row["sentences"]) for row in train.rows)
        config = settings.model.config(
            len(processor),
            sentence_length=sum(train.lengths) / sentences,
            word_length=settings.data.max_words,
            **label_maps(processor.tags),
        )
        return FloaterForDocuments(config)

    def collate(self, settings: Any, processor: Any, model: Any) -> Collate:
        return collate

    def hardest(self, examples: Encoded) -> Sequence[int]:
        counts = [len(row["sentences"]) for row in examples.rows]
        return [sizes.index(max(sizes)) for sizes in (examples.lengths, counts)]

    def summary(self, prepared: Prepared) -> str:
        sentences = sum(len(row["sentences"]) for row in prepared.train.rows)
        return (
            f"{len(prepared.train):,} training documents of {sentences:,} sentences and "
            f"{sum(prepared.train.lengths):,} words, {len(prepared.valid):,} for validation; "
            f"{len(prepared.processor):,} words, {len(prepared.processor.tags)} labels"
        )

    def score(self, settings: Any, model: Any, processor: Vocabulary, examples: Encoded) -> Measurement:
        """Label documents and score the labels; the loss is in nats per document."""
        logits = torch.zeros(len(examples), len(processor.tags))
        for indices, result, _ in outputs(model, examples, collate, 8192):
            logits[indices] = result.logits.float().cpu()
        wanted = torch.tensor([row["label"] for row in examples.rows])
        losses, best = F.cross_entropy(logits, wanted, reduction="none").numpy(), logits.argmax(-1)
        right, ones = (best == wanted).numpy(), np.ones(len(examples))
        (percent, line), loss = accuracy(right, "documents"), losses.mean(dtype=float)
        return Measurement(
            lengths=np.array(examples.lengths),
            statistics={
                "accuracy": np.stack([right, ones], axis=1),
                "document_loss": np.stack([losses, ones], axis=1),
            },
            lines=[processor.tags[label] for label in best.tolist()],
            scores={"loss": round(float(loss), 4), "accuracy": percent},
            report=f"{line}, loss {loss:.4f}",
        )

    def evaluate(self, run: RunPath, source: Any, part: str | None = None) -> Measurement:
        """Label documents with the final model of a run, and score the labels.

        Args:
            run: directory of a finished run.
            source: path of the documents, as for `read_documents`.
            part: part of the source to score, "train", "valid" or "test", split as the run splits its own
                data; None for all of it.

        Returns:
            The scores; `lines` are the labels, with an empty one for a row of a table without a word.

        Raises:
            DataError: if the run or the documents are not valid.
            PositionError: if the position model does not support a document.
        """
        model, vocabulary, settings = self.load(run)
        every = read_documents(source, settings.data.columns, labels=vocabulary.tags, blank=not part)
        every = settings.data.part(every, part) if part else every
        documents = [document for document in every if document.sentences]
        score = self.score(settings, model, vocabulary, self.encode(settings, vocabulary, documents))
        return score.with_gaps([bool(document.sentences) for document in every])

    measure = evaluate

    def question(self, settings: DocumentsSettings, metric: str, test: Mapping[str, Any] | None) -> Any:
        data = settings.data
        split = data.valid_share, data.test_share, data.split_seed
        return split, data.train if test is None else None


def encode(documents: Sequence[Document], vocabulary: Vocabulary, max_words: int) -> Encoded:
    """Encode documents; their lengths are in words.

    Args:
        documents: documents whose labels are in the vocabulary.
        vocabulary: vocabulary of the training documents.
        max_words: maximum number of words of a sentence; longer sentences are cut into several.

    Raises:
        DataError: if a label is not in the vocabulary.
    """
    rows: list[dict[str, Any]] = []
    for document in documents:
        if document.label not in vocabulary.tags:
            valid = ", ".join(vocabulary.tags)
            id = shown_value(document.id)
            raise DataError(f"document {id}: label '{document.label}'; there are: {valid}"[:500])
        ids = [vocabulary.ids(words) for words in document.sentences]
        cut = [words[i : i + max_words] for words in ids for i in range(0, len(words), max_words)]
        rows.append({"sentences": cut, "label": vocabulary.labels([document.label])[0]})
    return Encoded(rows, [sum(map(len, row["sentences"])) for row in rows])


def collate(examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Make a batch: `words` (N, W) of all sentences, `sentences` (batch, S), indices into them, and `labels`.

    Indices are -1 after the last sentence of a document. `attention_mask` marks words, to count tokens.

    Example:
        >>> batch = collate([{"sentences": [[5, 6], [7]], "label": 1}, {"sentences": [[8]], "label": 0}])
        >>> batch["words"].tolist(), batch["sentences"].tolist()
        ([[5, 6], [7, 0], [8, 0]], [[0, 1], [2, -1]])
    """
    flat = [words for example in examples for words in example["sentences"]]
    counts = [len(example["sentences"]) for example in examples]
    rows = torch.split(torch.arange(len(flat)), counts)
    words = padded(flat, PAD)
    return {
        "words": words,
        "attention_mask": (words != PAD).long(),
        "sentences": padded(rows, -1),
        "labels": torch.tensor([example["label"] for example in examples]),
    }
