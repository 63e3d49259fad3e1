"""Encoded examples of a checkpoint, their batches, and their logits."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    DataCollatorForMultipleChoice,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from floater.errors import DataError, first_line
from floater.flow import FlowError
from floater.lab.tasks.examples import Encoded, outputs
from floater.lab.text.ragged import Groups, Ragged, Records
from floater.lab.training import smoothed_cross_entropy
from floater.transformer.outputs import IGNORED

Example = dict[str, Any]
LABEL = "label"
AT_ONCE = 1000
"""Number of texts that a tokenizer encodes at a time."""
MAX_TOKENS = 4096
"""Maximum number of tokens in a batch of predictions, with padding."""


class CutTexts(UserWarning):
    """Warning that texts read by a finished run were too long and were truncated."""


@dataclass
class Features(Encoded):
    """Encoded examples of a checkpoint: the model's inputs and, if known, the labels.

    Args:
        rows: lists of numbers by name, such as `input_ids`, or one such list for each choice; `label` is a
            number or a list of numbers.
        source: examples before they were encoded, as the task reads them.
        cut: number of truncated texts.
        limit: names of the settings of the maximum length.
        more: further validation sets, on which only the final model is scored.
    """

    rows: Records
    lengths: list[int] = field(init=False)
    source: Any = None
    cut: int = 0
    limit: str = "data.max_length"
    more: dict[str, Features] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Count the tokens of each row, of all choices with padding."""
        ids = self.rows.column("input_ids") if self.rows else Ragged.of([])
        if isinstance(ids, Groups):
            starts = np.concatenate([[0], ids.ends[:-1]])
            counts = np.maximum.reduceat(ids.items.lengths, starts) * np.diff(ids.ends, prepend=0)
        else:
            counts = ids.lengths
        self.lengths = counts.tolist()


def truncated(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], most: int) -> tuple[list[str], int]:
    """Return texts truncated to a number of tokens, and the number of truncated ones."""
    short, cut = list(texts), 0
    for start in range(0, len(texts), AT_ONCE):
        encoded = tokenizer(
            list(texts[start : start + AT_ONCE]), add_special_tokens=False, return_offsets_mapping=True
        )
        for i, offsets in enumerate(encoded["offset_mapping"], start):
            if len(offsets) > most:
                short[i] = texts[i][: offsets[most - 1][1]]
                cut += 1
    return short, cut


def encoded_texts(
    tokenizer: PreTrainedTokenizerFast,
    first: Sequence[str],
    second: Sequence[str] | None,
    max_length: int,
    truncation: str,
) -> Iterator[tuple[Example, bool]]:
    """Encode texts, or pairs of texts, truncated to a length, and tell which ones were truncated.

    The tokenizer's results take several times the memory of the numbers, so it gets a part of the texts at a
    time.

    Args:
        tokenizer: tokenizer of the checkpoint.
        first: texts, or the first text of each pair.
        second: second text of each pair, or None.
        max_length: maximum number of tokens, special tokens included.
        truncation: truncation strategy of transformers, which chooses the text of a pair to truncate.

    Raises:
        DataError: if a text cannot be truncated enough.
    """
    for start in range(0, len(first), AT_ONCE):
        end = start + AT_ONCE
        encoded = tokenizer(
            list(first[start:end]),
            None if second is None else list(second[start:end]),
            truncation=truncation,
            max_length=max_length,
        )
        for i, part in enumerate(encoded.encodings or ()):
            row = {name: encoded[name][i] for name in encoded}
            if (length := len(row["input_ids"])) > max_length:
                raise DataError(
                    f"a text has {length} tokens and cannot be cut to {max_length}; raise data.max_length"
                )
            yield row, bool(part.overflowing)


def encode_texts(
    tokenizer: PreTrainedTokenizerFast,
    first: Sequence[str],
    second: Sequence[str] | None,
    max_length: int,
    labels: Iterable[Any] | None = None,
) -> Features:
    """Encode texts, or pairs of texts whose longer one is truncated, perhaps with a label each.

    See `encoded_texts`.
    """
    cut = 0

    def rows() -> Iterator[Example]:
        nonlocal cut
        each = itertools.repeat({}) if labels is None else ({LABEL: label} for label in labels)
        encoded = encoded_texts(tokenizer, first, second, max_length, "longest_first")
        for (row, was_cut), label in zip(encoded, each, strict=labels is not None):
            cut += was_cut
            yield row | label

    return Features(Records.of(rows()), cut=cut)


def collate(rows: Sequence[Example], *, tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
    """Make a padded batch of the model's inputs, (batch, T) or (batch, choices, T), and `labels`.

    Labels are float32 for real numbers, else int64.
    """
    if isinstance(rows[0]["input_ids"][0], list):
        choices = DataCollatorForMultipleChoice(tokenizer)
        return dict(choices([{LABEL: IGNORED} | row for row in rows]))  # the collator requires labels
    return dict(DataCollatorWithPadding(tokenizer)(list(rows)))


def logits(outputs: Any) -> Tensor:
    """Return the logits of classes or choices, (batch, K), or of a span's start and end, (batch, 2, T)."""
    if hasattr(outputs, "start_logits"):
        return torch.stack([outputs.start_logits, outputs.end_logits], 1)
    result: Tensor = outputs.logits
    return result


def loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Return the cross-entropy of the logits, or the squared error of real labels, per label."""
    scores = logits(outputs)
    if not labels.is_floating_point():
        return smoothed_cross_entropy(scores, labels, 0.0, num_items_in_batch)
    total = (scores.squeeze(-1).float() - labels).square().sum()
    return total / (labels.numel() if num_items_in_batch is None else num_items_in_batch)


@contextlib.contextmanager
def readable(what: str, limit: str) -> Iterator[None]:
    """Convert any failure of a checkpoint on a text beyond its positions into a `DataError`.

    Args:
        what: noun and number of tokens of the text, for the message.
        limit: name of the setting of the maximum number of tokens.

    Raises:
        DataError: in place of the model's exception.
    """
    try:
        yield
    except (FlowError, DataError):  # errors of this library
        raise
    except (IndexError, RuntimeError, ValueError) as error:
        raise DataError(f"the model cannot read {what} ({first_line(error)}); lower {limit}") from error


def predict(
    model: PreTrainedModel,
    features: Features,
    tokenizer: PreTrainedTokenizerFast,
) -> list[np.ndarray]:
    """Compute the logits of each example; no random number is used, so that the training is unaffected.

    Args:
        model: model to run; its mode (training or evaluation) is restored.
        features: encoded examples; their labels are not used.
        tokenizer: tokenizer of the model.

    Returns:
        The logits of each example in order, (K,) or (2, T), float32.

    Raises:
        DataError: if the model has too few positions for an example.
    """
    predictions: list[np.ndarray] = [np.empty(0)] * len(features)
    if not features.rows:
        return predictions
    make = functools.partial(collate, tokenizer=tokenizer)
    ids = features.rows.column("input_ids")
    longest = (ids.items if isinstance(ids, Groups) else ids).lengths.max()
    with readable(f"an example of {longest} tokens", "data.max_length"):
        for indices, result, _ in outputs(model, features, make, MAX_TOKENS, baked=True):
            for i, row in zip(indices, logits(result).float().cpu().numpy(), strict=True):
                predictions[i] = row[:, : features.lengths[i]] if row.ndim == 2 else row
    return predictions
