"""Part-of-speech tagging: train on CoNLL-U files, with or without their dependency trees."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from floater.encodings import catalogue, options
from floater.errors import DataError
from floater.positions import Positions
from floater.tasks import settings
from floater.tasks.corpora.conllu import Sentence, read_sentences
from floater.tasks.examples import Collate, Encoded, in_batches
from floater.tasks.measurement import Measurement
from floater.tasks.registry import register
from floater.tasks.task import Prepared, Splits, Task
from floater.tasks.vocabulary import PAD, Vocabulary
from floater.training.run import evaluating
from floater.training.settings import SmoothedTrainingSettings, check_numbers
from floater.transformer import FloaterForTokenClassification
from floater.transformer.outputs import IGNORED

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Data:
    """The sentences, and what a word becomes.

    Attributes:
        train: training sentences, a CoNLL-U file, plain or .gz.
        valid: validation sentences.
        min_count: words that are rarer in the training sentences count as unknown.
        suffix: letters at the end of an unknown word that distinguish it; 0 for one unknown word.
        max_tokens: longer training sentences (in words) are excluded, and counted.
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


@dataclass(frozen=True)
class Training(SmoothedTrainingSettings):
    """Optimisation; the best validation is that of the highest accuracy."""

    learning_rate: float = 2e-3
    warmup_steps: int | float = 200
    max_tokens: int = 1000
    num_train_epochs: int = 10
    average_last: int = 0


@dataclass(frozen=True, kw_only=True)
class TaggingSettings(settings.RunSettings):
    """A tagging run."""

    task: Literal["tagging"] = "tagging"
    data: Data
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)


@register("tagging")
class Tagging(Task):
    """Tags of words; a position encoding over trees or graphs reads the dependency trees."""

    Settings = TaggingSettings
    metric, example, unit = "accuracy", "sentence", "words"
    output = "tags"
    shorten = ", or leave long sentences out with data.max_tokens"

    def read(self, settings: TaggingSettings) -> Splits:
        return Splits(
            *(self.read_test(settings, path) for path in (settings.data.train, settings.data.valid))
        )

    def read_test(self, settings: TaggingSettings, source: Any) -> list[Sentence]:
        return read_sentences(source, structured=structured(settings.model.position))

    def toy(self, settings: TaggingSettings) -> list[Sentence]:
        return [Sentence(["a", "b"], ["A", "B"], [-1, 0], ["c", "c"])]

    def make_processor(self, settings: TaggingSettings, train: list[Sentence]) -> Vocabulary:
        return Vocabulary.of(train, settings.data.min_count, settings.data.suffix)

    def load_processor(self, folder: Any) -> Vocabulary:
        return Vocabulary.from_pretrained(folder)

    def encode(
        self, settings: Any, processor: Vocabulary, examples: Any, *, training: bool = False
    ) -> Encoded:
        most = settings.data.max_tokens if training else None
        kept = [sentence for sentence in examples if most is None or len(sentence.words) <= most]
        if not kept:
            raise DataError(f"no sentence is left: all {len(examples)} have more than {most} words")
        if dropped := len(examples) - len(kept):
            logger.info("%s training sentences of more than %s words left out", f"{dropped:,}", most)
        return encode(kept, processor)

    def kind(self, settings: Any) -> Any:
        return FloaterForTokenClassification

    def build(self, settings: Any, processor: Vocabulary, train: Any) -> FloaterForTokenClassification:
        config = settings.model.config(len(processor))
        config.id2label, config.label2id = processor.names()
        if "labels" in options(config.position):
            config.position_options = {"labels": 1 + len(processor.relations)} | config.position_options
        return FloaterForTokenClassification(config)

    def collate(self, settings: Any, processor: Any, model: Any) -> Collate:
        return functools.partial(collate, structured=structured(model.config.position))

    def hardest(self, examples: Encoded) -> Sequence[int]:
        widest = [max(Counter(row["parents"]).values()) for row in examples.rows]
        return [sizes.index(max(sizes)) for sizes in (examples.lengths, widest)]

    def summary(self, prepared: Prepared) -> str:
        vocabulary = prepared.processor
        return (
            f"{len(prepared.train):,} training sentences, {len(prepared.valid):,} for validation; "
            f"{len(vocabulary):,} words, {len(vocabulary.tags)} tags, {len(vocabulary.relations)} relations"
        )

    def score(self, settings: Any, model: Any, processor: Vocabulary, examples: Encoded) -> Measurement:
        return tag(model, processor, examples)

    measure = Task.evaluate

    def check_test(self, settings: TaggingSettings, **test: Any) -> None:
        source = test["source"]
        words = max(len(sentence.words) for sentence in self.read_test(settings, source))
        settings.model.check_reach(words, f"the longest sentence of {source} has {words} words")


def encode(sentences: Sequence[Sentence], vocabulary: Vocabulary) -> Encoded:
    """Encode sentences; their lengths are in words."""
    rows = [
        {
            "input_ids": vocabulary.ids(sentence.words),
            "labels": vocabulary.labels(sentence.tags),
            "parents": sentence.parents,
            "relations": vocabulary.edges(sentence.relations),
        }
        for sentence in sentences
    ]
    return Encoded(rows, [len(sentence.words) for sentence in sentences], sentences)


def collate(examples: Sequence[dict[str, list[int]]], *, structured: bool) -> dict[str, Any]:
    """Make a batch padded on the right: `input_ids`, `labels`, and where the words stand.

    That is `positions` from the dependency trees where `structured`, else an `attention_mask`.
    """

    def padded(name: str, value: int) -> Tensor:
        rows = [torch.tensor(example[name]) for example in examples]
        return pad_sequence(rows, batch_first=True, padding_value=value)

    batch: dict[str, Any] = {"input_ids": padded("input_ids", PAD), "labels": padded("labels", IGNORED)}
    if not structured:
        return batch | {"attention_mask": (batch["input_ids"] != PAD).long()}
    relations = [example["relations"] for example in examples]
    return batch | {"positions": Positions.tree([row["parents"] for row in examples], labels=relations)}


def structured(position: str) -> bool:
    """Return whether a position encoding of the catalogue reads trees or graphs.

    Example:
        >>> structured("tree"), structured("sinusoidal")
        (True, False)
    """
    return hasattr(catalogue()[position], "needs")


def tag(model: Any, vocabulary: Vocabulary, examples: Encoded, max_tokens: int = 4096) -> Measurement:
    """Tag sentences and score the tags; lengths are in words.

    Args:
        model: it is left in the mode it is in.
        vocabulary: of the model.
        examples: with the right tags.
        max_tokens: words in a batch, with padding.

    Returns:
        Loss, in nats per word whose tag the model knows, and accuracy, of all words and of unknown ones; the
        lines are the tags.
    """
    make = functools.partial(collate, structured=structured(model.config.position))
    tags: list[list[str]] = [[]] * len(examples)
    nats, count = 0.0, 0
    with evaluating(model):
        for indices, batch in in_batches(examples, make, model.device, max_tokens):
            labels = batch.pop("labels")
            logits = model(**batch).logits.float()
            loss = F.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
            )
            nats, count = nats + float(loss), count + int((labels != IGNORED).sum())
            for index, row in zip(indices, logits.argmax(-1).tolist(), strict=True):
                tags[index] = [vocabulary.tags[tag] for tag in row[: examples.lengths[index]]]
    pairs = list(zip(examples.source, tags, strict=True))
    hits = [[a == b for a, b in zip(row, sentence.tags, strict=True)] for sentence, row in pairs]
    known = [word in vocabulary for sentence, _ in pairs for word in sentence.words]
    of_unknown = [hit for hit, seen in zip(chain.from_iterable(hits), known, strict=True) if not seen]
    right, accuracy = sum(map(sum, hits)), 100 * sum(map(sum, hits)) / len(known)
    unknown = 100 * sum(of_unknown) / max(len(of_unknown), 1)
    scores = {"loss": nats / max(count, 1), "accuracy": accuracy, "accuracy_unknown": unknown}
    return Measurement(
        lengths=np.array(examples.lengths),
        statistics={"accuracy": np.array([[sum(row), len(row)] for row in hits])},
        lines=[" ".join(row) for row in tags],
        scores={name: round(value, 4 if name == "loss" else 2) for name, value in scores.items()},
        report=f"accuracy {accuracy:.2f} ({right:,} of {len(known):,} words)\n"
        f"unknown words {unknown:.2f} ({sum(of_unknown):,} of {len(of_unknown):,} words)",
    )
