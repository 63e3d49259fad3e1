"""Encoded examples of a checkpoint, their batches, and their logits."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
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
from floater.lab.training import smoothed_cross_entropy
from floater.transformer.outputs import IGNORED

Example = dict[str, Any]
LABEL = "label"
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

    lengths: list[int] = field(init=False)
    source: Any = None
    cut: int = 0
    limit: str = "data.max_length"
    more: dict[str, Features] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Count the tokens of each row, of all choices with padding."""
        ids = [row["input_ids"] for row in self.rows]
        self.lengths = [len(x) * max(map(len, x)) if isinstance(x[0], list) else len(x) for x in ids]


def encode_texts(
    tokenizer: PreTrainedTokenizerFast,
    first: Sequence[str],
    second: Sequence[str] | None,
    max_length: int,
    truncation: str = "longest_first",
) -> Features:
    """Encode texts, or pairs of texts, truncated to a length.

    Args:
        tokenizer: tokenizer of the checkpoint.
        first: texts, or the first text of each pair.
        second: second text of each pair, or None.
        max_length: maximum number of tokens, special tokens included.
        truncation: truncation strategy of transformers, which chooses the text of a pair to truncate.

    Raises:
        DataError: if a text cannot be truncated enough.
    """
    if not first:
        return Features([])
    encoded = tokenizer(
        list(first),
        None if second is None else list(second),
        truncation=truncation,
        max_length=max_length,
    )
    rows = [{name: encoded[name][i] for name in encoded} for i in range(len(first))]
    longest = max(len(row["input_ids"]) for row in rows)
    if longest > max_length:
        raise DataError(
            f"a text has {longest} tokens and cannot be cut to {max_length}; raise data.max_length"
        )
    return Features(rows, cut=sum(bool(part.overflowing) for part in encoded.encodings or ()))


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
    ids = [row["input_ids"] for row in features.rows]
    longest = max(max(map(len, x)) if isinstance(x[0], list) else len(x) for x in ids)
    with readable(f"an example of {longest} tokens", "data.max_length"):
        for indices, result, _ in outputs(model, features, make, MAX_TOKENS, baked=True):
            for i, row in zip(indices, logits(result).float().cpu().numpy(), strict=True):
                predictions[i] = row[:, : features.lengths[i]] if row.ndim == 2 else row
    return predictions
