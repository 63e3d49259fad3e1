"""Encoded examples of a checkpoint, their batches, and its logits."""

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
from floater.tasks.examples import Encoded, outputs
from floater.training import smoothed_cross_entropy
from floater.transformer.outputs import IGNORED

Example = dict[str, Any]
LABEL = "label"


class CutTexts(UserWarning):
    """Texts that a finished run reads were too long and lost their ends."""


@dataclass
class Features(Encoded):
    """Encoded examples of a checkpoint: what the model takes, and where it is known the label.

    Args:
        rows: lists of numbers by name, `input_ids` among them, or one such list for each choice; `label` is
            a number or a list of numbers.
        source: what was encoded, as the task reads it.
        cut: number of texts that were too long and lost their ends.
        limit: the settings that say what is too long.
        more: further validation sets, that only the final model is scored on.
    """

    lengths: list[int] = field(init=False)
    source: Any = None
    cut: int = 0
    limit: str = "data.max_length"
    more: dict[str, Features] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Count the tokens of each row, those of all choices with padding."""
        ids = [row["input_ids"] for row in self.rows]
        self.lengths = [len(x) * max(map(len, x)) if isinstance(x[0], list) else len(x) for x in ids]


def encode_texts(
    tokenizer: PreTrainedTokenizerFast,
    first: Sequence[str],
    second: Sequence[str] | None,
    max_length: int,
    truncation: str = "longest_first",
) -> Features:
    """Encode texts, or pairs of texts, cut to a length.

    Args:
        tokenizer: of the checkpoint.
        first: texts.
        second: as many, or None.
        max_length: tokens, special ones included.
        truncation: which of the two loses its end, as transformers names it.

    Raises:
        DataError: if a text cannot be cut enough.
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
    """Make a padded batch: what the model takes, (batch, T) or (batch, choices, T), and `labels`.

    Labels are of type float32 where they are real, else int64.
    """
    if isinstance(rows[0]["input_ids"][0], list):
        choices = DataCollatorForMultipleChoice(tokenizer)
        return dict(choices([{LABEL: IGNORED} | row for row in rows]))  # it does not go without labels
    return dict(DataCollatorWithPadding(tokenizer)(list(rows)))


def logits(outputs: Any) -> Tensor:
    """Return the scores of classes or choices, (batch, K); of a span's start and end, (batch, 2, T)."""
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
    """Report that a text is beyond a checkpoint's positions, in whichever way the checkpoint fails.

    Args:
        what: it reads, and of how many tokens.
        limit: the setting that says how many these may be.

    Raises:
        DataError: instead of what the model raises.
    """
    try:
        yield
    except (FlowError, DataError):  # of this library
        raise
    except (IndexError, RuntimeError, ValueError) as error:
        raise DataError(f"the model cannot read {what} ({first_line(error)}); lower {limit}") from error


def predict(
    model: PreTrainedModel,
    features: Features,
    tokenizer: PreTrainedTokenizerFast,
    max_tokens: int = 4096,
) -> list[np.ndarray]:
    """Compute the logits of each example; no random number is used, so that a training is not changed.

    Args:
        model: it is left in the mode it is in.
        features: encoded examples; their labels are not read.
        tokenizer: of the model.
        max_tokens: tokens in a batch, with padding.

    Returns:
        Logits of each example in order, (K,) or (2, T), float32.

    Raises:
        DataError: if the model has too few positions for an example.
    """
    found: list[np.ndarray] = [np.empty(0)] * len(features)
    if not features.rows:
        return found
    make = functools.partial(collate, tokenizer=tokenizer)
    ids = [row["input_ids"] for row in features.rows]
    longest = max(max(map(len, x)) if isinstance(x[0], list) else len(x) for x in ids)
    with readable(f"an example of {longest} tokens", "data.max_length"):
        for indices, result, _ in outputs(model, features, make, max_tokens, baked=True):
            for i, row in zip(indices, logits(result).float().cpu().numpy(), strict=True):
                found[i] = row[:, : features.lengths[i]] if row.ndim == 2 else row
    return found
