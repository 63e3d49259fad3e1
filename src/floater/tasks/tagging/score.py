"""Tagging sentences, and how many tags are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch.nn import functional as F

from floater.tasks.conllu import Sentence
from floater.tasks.measurement import Measurement
from floater.tasks.run import evaluating
from floater.tasks.tagging.data import TaggedSentences, Vocabulary, collate, read_sentences
from floater.tasks.tagging.run import load_run, structured
from floater.training import TokenBatchSampler
from floater.transformer import FloaterForTokenClassification
from floater.transformer.outputs import IGNORED


@dataclass(frozen=True)
class Tagging:
    """Tags of sentences, held against those that are right.

    Args:
        tags: of each sentence, in the order of the sentences.
        loss: nats per word, not smoothed, over the words whose tag the model knows.
        words: how many words there are, and
        right: how many have the right tag.
        unknown: how many words are not in the vocabulary, and
        unknown_right: how many of those have the right tag.
    """

    tags: list[list[str]]
    loss: float
    words: int
    right: int
    unknown: int
    unknown_right: int

    @property
    def accuracy(self) -> float:
        """Right tags in a hundred words."""
        return 100 * self.right / self.words

    @property
    def metrics(self) -> dict[str, float]:
        """Loss and accuracies, rounded for a log."""
        of_unknown = 100 * self.unknown_right / max(self.unknown, 1)
        return {
            "loss": round(self.loss, 4),
            "accuracy": round(self.accuracy, 2),
            "accuracy_unknown": round(of_unknown, 2),
        }

    def __str__(self) -> str:
        """Two lines for a person.

        Example:
            >>> print(Tagging(tags=[], loss=0.3, words=1200, right=1086, unknown=100, unknown_right=63))
            accuracy 90.50 (1,086 of 1,200 words)
            unknown words 63.00 (63 of 100 words)
        """
        of_unknown = self.metrics["accuracy_unknown"]
        return (
            f"accuracy {self.accuracy:.2f} ({self.right:,} of {self.words:,} words)\n"
            f"unknown words {of_unknown:.2f} ({self.unknown_right:,} of {self.unknown:,} words)"
        )


def tag(
    model: FloaterForTokenClassification,
    vocabulary: Vocabulary,
    sentences: Sequence[Sentence],
    max_tokens: int = 4096,
) -> Tagging:
    """Tag sentences; no random number is drawn, so that training goes on as without it.

    Args:
        model: it is left in the mode it is in.
        vocabulary: of the model.
        sentences: with the right tags.
        max_tokens: words in a batch, with padding.

    Raises:
        PositionError: if the position model cannot serve a sentence.
    """
    examples, trees = TaggedSentences(sentences, vocabulary), structured(model.config.position)
    tags: list[list[str]] = [[]] * len(sentences)
    nats, count = 0.0, 0
    budget = max(max_tokens, max(examples.lengths))
    with evaluating(model):
        for indices in TokenBatchSampler(examples.lengths, budget, seed=0, shuffle=False):
            batch = {
                name: part.to(model.device)
                for name, part in collate([examples[i] for i in indices], structured=trees).items()
            }
            labels = batch.pop("labels")
            logits = model(**batch).logits.float()
            nats += float(
                F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
            )
            count += int((labels != IGNORED).sum())
            for index, row in zip(indices, logits.argmax(-1).tolist(), strict=True):
                tags[index] = [vocabulary.tags[tag] for tag in row[: examples.lengths[index]]]
    marks = [
        (word in vocabulary, found == right)
        for sentence, row in zip(sentences, tags, strict=True)
        for word, right, found in zip(sentence.words, sentence.tags, row, strict=True)
    ]
    return Tagging(
        tags=tags,
        loss=nats / max(count, 1),
        words=len(marks),
        right=sum(right for _, right in marks),
        unknown=sum(not known for known, _ in marks),
        unknown_right=sum(right and not known for known, right in marks),
    )


def evaluate(run: str | Path, source: str | Path) -> Tagging:
    """Tag the sentences of a CoNLL-U file with a run's final model and score them.

    Args:
        run: a finished run directory, or a saved model.
        source: a CoNLL-U file with the right tags.

    Raises:
        DataError: if the run or the file is not what it must be.
        PositionError: if the position model cannot serve a sentence.
    """
    model, vocabulary = load_run(run)
    sentences = read_sentences(source, structured=structured(model.config.position))
    return tag(model, vocabulary, sentences)


def measure(run: str | Path, source: str | Path) -> Measurement:
    """Accuracy of a run's final model on the sentences of a CoNLL-U file, sentence by sentence.

    Lengths are in words.

    Raises:
        DataError: if the run or the file is not what it must be.
        PositionError: if the position model cannot serve a sentence.
    """
    model, vocabulary = load_run(run)
    sentences = read_sentences(source, structured=structured(model.config.position))
    found = tag(model, vocabulary, sentences)
    right = [
        [sum(map(str.__eq__, row, sentence.tags)), len(row)]
        for sentence, row in zip(sentences, found.tags, strict=True)
    ]
    return Measurement(
        lengths=np.array([len(sentence.words) for sentence in sentences]),
        statistics={"accuracy": np.array(right)},
        lines=[" ".join(tags) for tags in found.tags],
    )
