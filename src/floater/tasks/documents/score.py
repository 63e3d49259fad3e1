"""Classifying documents, and how many labels are right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from floater.settings import load
from floater.tasks.documents.data import Document, Documents, collate, read_documents
from floater.tasks.documents.model import FloaterForDocuments
from floater.tasks.documents.settings import Data, DocumentsSettings
from floater.tasks.measurement import Measurement
from floater.tasks.run import SETTINGS, evaluating, load_model
from floater.tasks.split import split
from floater.tasks.tagging.data import Vocabulary
from floater.tasks.text import DataError
from floater.training import TokenBatchSampler


@dataclass(frozen=True)
class Classified:
    """Labels of documents, held against those that are right.

    Args:
        labels: of each document, in their order.
        losses: nats of each.
        hits: whether each is right.
    """

    labels: list[str]
    losses: list[float]
    hits: list[bool]

    @property
    def loss(self) -> float:
        """Nats per document."""
        return sum(self.losses) / len(self.losses)

    @property
    def right(self) -> int:
        """How many labels are right."""
        return sum(self.hits)

    @property
    def metrics(self) -> dict[str, float]:
        """Loss and accuracy in percent, rounded for a log."""
        return {"loss": round(self.loss, 4), "accuracy": round(100 * self.right / len(self.labels), 2)}

    def __str__(self) -> str:
        """One line for a person.

        Example:
            >>> print(Classified(["neg", "pos"], losses=[0.3, 0.5], hits=[True, False]))
            accuracy 50.00 (1 of 2 documents), loss 0.4000
        """
        count, accuracy = len(self.labels), self.metrics["accuracy"]
        return f"accuracy {accuracy:.2f} ({self.right:,} of {count:,} documents), loss {self.loss:.4f}"


def classify(
    model: FloaterForDocuments, vocabulary: Vocabulary, examples: Documents, max_tokens: int = 8192
) -> Classified:
    """Label documents; no random number is drawn, so that training goes on as without it.

    Args:
        model: it is left in the mode it is in.
        vocabulary: of the model.
        examples: with the right labels.
        max_tokens: words in a batch.

    Raises:
        PositionError: if the position model cannot serve a document.
    """
    found: list[tuple[str, float, bool]] = [("", 0.0, False)] * len(examples)
    budget = max(max_tokens, max(examples.lengths))
    with evaluating(model):
        for indices in TokenBatchSampler(examples.lengths, budget, seed=0, shuffle=False):
            batch = {
                name: part.to(model.device) for name, part in collate([examples[i] for i in indices]).items()
            }
            wanted = batch.pop("labels")
            logits = model(**batch).logits.float()
            losses = F.cross_entropy(logits, wanted, reduction="none").tolist()
            best = logits.argmax(-1)
            hits = (best == wanted).tolist()
            for index, label, loss, hit in zip(indices, best.tolist(), losses, hits, strict=True):
                found[index] = vocabulary.tags[label], loss, hit
    labels, nats, right = map(list, zip(*found, strict=True))
    return Classified(labels, nats, right)


def load_run(
    run: str | Path, device: str | torch.device | None = None
) -> tuple[FloaterForDocuments, Vocabulary]:
    """The final model and the vocabulary of a run.

    Raises:
        DataError: if the directory holds no finished run, or a broken one.
    """
    kind: type[Any] = FloaterForDocuments  # of a configuration of its own
    return load_model(kind, run, device, Vocabulary.from_pretrained)


def part_of(documents: list[Document], part: str, data: Data) -> list[Document]:
    """The documents of "train", "valid" or "test".

    Raises:
        DataError: if there is none.
    """
    shares = {"valid": data.valid_share, "test": data.test_share}
    found = split(documents, part, **shares, seed=data.split_seed, name=lambda document: document.id)
    if not found:
        raise DataError(
            f"none of the {len(documents):,} documents is for '{part}', with data.valid_share "
            f"{data.valid_share}, test_share {data.test_share} and split_seed {data.split_seed}"
        )
    return found


def evaluate(run: str | Path, source: str | Path, part: str | None = None) -> Classified:
    """Label documents with a run's final model and score them.

    Args:
        run: a finished run directory.
        source: as for `read_documents`.
        part: "train", "valid" or "test" of the source, as the run splits its own data; None is all of it.

    Raises:
        DataError: if the run or the documents are not what they must be.
        SettingsError: if the run's settings cannot be read.
        PositionError: if the position model cannot serve a document.
    """
    return _classified(run, source, part)[0]


def measure(run: str | Path, source: str | Path, part: str | None = None) -> Measurement:
    """Accuracy and loss of a run's final model, document by document; see `evaluate` for the arguments.

    Lengths are in words.
    """
    found, lengths = _classified(run, source, part)
    ones = np.ones(len(lengths))
    return Measurement(
        lengths=np.array(lengths),
        statistics={
            "accuracy": np.stack([np.array(found.hits, dtype=float), ones], axis=1),
            "loss": np.stack([np.array(found.losses), ones], axis=1),
        },
        lines=found.labels,
    )


def _classified(run: str | Path, source: str | Path, part: str | None) -> tuple[Classified, list[int]]:
    """The labels of documents, and their lengths."""
    model, vocabulary = load_run(run)
    data = load(DocumentsSettings, Path(run) / SETTINGS).data
    documents = read_documents(source)
    documents = part_of(documents, part, data) if part else documents
    examples = Documents(documents, vocabulary, data.max_words)
    return classify(model, vocabulary, examples), examples.lengths
