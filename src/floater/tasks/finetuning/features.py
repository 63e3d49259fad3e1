"""Encoded examples, their batches, and what a model says of them."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from floater.errors import DataError, first_line
from floater.flow import FlowError
from floater.tasks.task import in_batches
from floater.training import smoothed_cross_entropy
from floater.training.run import evaluating

Row = dict[str, Any]
LABEL = "label"


class CutTexts(UserWarning):
    """Texts that a finished run reads were too long and lost their ends."""


@dataclass
class Features(Dataset[Row]):
    """Encoded examples: of each what the model takes, and where it is known the label.

    Args:
        rows: lists of numbers by name, `input_ids` among them, or one such list for each choice; `label` is
            a number or a list of numbers.
        cut: how many texts were too long and lost their ends.
        limit: the settings that say what is too long.
        source: what was encoded, as the task reads it.
        more: further validation sets, that only the final model is scored on.
    """

    rows: list[Row]
    cut: int = 0
    limit: str = "data.max_length"
    source: Any = None
    more: dict[str, Features] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each example, of its longest choice times their number where there are choices."""
        return [_length(row["input_ids"]) for row in self.rows]


def _length(ids: Sequence[Any]) -> int:
    return len(ids) * max(map(len, ids)) if isinstance(ids[0], list) else len(ids)


def encode(
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


def collate(rows: Sequence[Row], *, tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
    """A padded batch: what the model takes, (batch, T) or (batch, choices, T), and `labels`.

    Labels are of type float32 where they are real, else int64.
    """
    choices = isinstance(rows[0]["input_ids"][0], list)
    inputs = [{name: value for name, value in row.items() if name != LABEL} for row in rows]
    if choices:
        inputs = [
            {name: row[name][i] for name in row} for row in inputs for i in range(len(row["input_ids"]))
        ]
    batch = dict(tokenizer.pad(inputs, return_tensors="pt"))
    if choices:
        batch = {name: value.unflatten(0, (len(rows), -1)) for name, value in batch.items()}
    if LABEL in rows[0]:
        batch["labels"] = torch.tensor([row[LABEL] for row in rows])
    return batch


def logits(outputs: Any) -> Tensor:
    """Scores of classes or choices, (batch, K); of a span's start and end, (batch, 2, T)."""
    if hasattr(outputs, "start_logits"):
        return torch.stack([outputs.start_logits, outputs.end_logits], 1)
    result: Tensor = outputs.logits
    return result


def loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Cross-entropy of the logits, or for real labels the squared error, divided by the number of labels."""
    scores = logits(outputs)
    if not labels.is_floating_point():
        return smoothed_cross_entropy(scores, labels, 0.0, num_items_in_batch)
    total = (scores.squeeze(-1).float() - labels).square().sum()
    return total / (labels.numel() if num_items_in_batch is None else num_items_in_batch)


def warn_of_cuts(features: Features) -> None:
    """Say that a finished run reads texts without their ends, where it does.

    Warns:
        CutTexts: with their number.
    """
    if features.cut:
        warnings.warn(f"{features.cut:,} texts cut at {features.limit}", CutTexts, stacklevel=2)


@contextlib.contextmanager
def readable(what: str, limit: str) -> Iterator[None]:
    """Say of a checkpoint that fails, in one of many ways, that what it reads is beyond its positions.

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
    """What a model says of each example; no random number is drawn, so that training goes on as without it.

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
    if not features:
        return found
    lengths = features.lengths
    unlabelled = Features([{k: v for k, v in row.items() if k != LABEL} for row in features.rows])
    make = functools.partial(collate, tokenizer=tokenizer)
    with evaluating(model, baked=True):
        for indices, batch in in_batches(unlabelled, make, model.device, max_tokens):
            with readable(f"an example of {batch['input_ids'].shape[-1]} tokens", "data.max_length"):
                scores = logits(model(**batch))
            for i, row in zip(indices, scores.float().cpu().numpy(), strict=True):
                found[i] = row[:, : lengths[i]] if row.ndim == 2 else row
    return found
