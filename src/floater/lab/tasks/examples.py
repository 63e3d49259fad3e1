"""Encoded examples, their batches, and the outputs of a model for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from accelerate.utils import send_to_device
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from floater.errors import DataError
from floater.lab.training import TokenBatchSampler
from floater.lab.training.model import inference
from floater.lab.training.progress import watched

logger = logging.getLogger(__name__)
Collate = Callable[[Sequence[Any]], dict[str, Any]]


class Examples(Protocol):
    """Data set of encoded examples and the length of each, in tokens or another unit of the task."""

    @property
    def lengths(self) -> Sequence[int]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass
class Encoded(Dataset[Any]):
    """Encoded examples and their lengths.

    Args:
        rows: encoded examples, the items of a batch.
        lengths: length of each example, in the unit of the task.
        source: examples before they were encoded, where scores need them.

    Example:
        >>> Encoded([{"input_ids": [5, 6]}], [2])[0]
        {'input_ids': [5, 6]}
    """

    rows: Sequence[Any]
    lengths: list[int]
    source: Any = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def keep_short(lengths: Sequence[int], most: int | None, what: str, unit: str) -> list[int]:
    """Return the indices of the training examples that are not too long, and log the number of the others.

    Args:
        lengths: length of each training example.
        most: maximum length of an example that is kept; None keeps all.
        what: noun for an example, for messages.
        unit: unit of the lengths, in the plural.

    Raises:
        DataError: if no example is left.

    Example:
        >>> keep_short([3, 9, 4], 4, "sentence", "words")
        [0, 2]
    """
    kept = [index for index, length in enumerate(lengths) if most is None or length <= most]
    if not kept:
        raise DataError(f"no {what} is left: all {len(lengths)} have more than {most} {unit}")
    if dropped := len(lengths) - len(kept):
        logger.info("%s training %ss of more than %s %s excluded", f"{dropped:,}", what, most, unit)
    return kept


def padded(rows: Iterable[Any], value: int = 0) -> Tensor:
    """Return rows of numbers, or of vectors, as one tensor, padded on the right; integers become int64.

    Example:
        >>> padded([[1, 2], [3]], -100)
        tensor([[   1,    2],
                [   3, -100]])
    """
    tensors = [torch.as_tensor(row) for row in rows]
    whole = pad_sequence(tensors, batch_first=True, padding_value=value)
    return whole.long() if whole.dtype == torch.int32 else whole


def in_batches(
    examples: Examples, collate: Collate, device: torch.device | str, max_tokens: int
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Yield batches of examples on a device, from short to long.

    This uses no DataLoader, because even one that does not shuffle consumes random numbers of torch.

    Args:
        examples: encoded examples.
        collate: function from a list of examples to a batch.
        device: device of the tensors.
        max_tokens: maximum number of tokens in a batch, with padding; a longer example is a batch of its own.

    Yields:
        The indices of a batch's examples, and the batch.

    Example:
        >>> numbers = Encoded([4, 5, 6], [1, 1, 1])
        >>> batches = in_batches(numbers, lambda rows: {"x": torch.tensor(rows)}, "cpu", 2)
        >>> [(indices, batch["x"].tolist()) for indices, batch in batches]
        [([0, 1], [4, 5]), ([2], [6])]
    """
    lengths = list(examples.lengths)
    sampler = TokenBatchSampler(lengths, max(max_tokens, *lengths, 1), seed=0, shuffle=False)
    for indices in watched(sampler, len(sampler), "batches"):
        yield indices, send_to_device(collate([examples[i] for i in indices]), device)


def outputs(
    model: PreTrainedModel, examples: Examples, collate: Collate, max_tokens: int, *, baked: bool = False
) -> Iterator[tuple[list[int], Any, Any]]:
    """Compute a model's outputs for examples, from short to long; no random number is used.

    Args:
        model: model to run; its mode (training or evaluation) is restored.
        examples: encoded examples.
        collate: function from a list of examples to a batch.
        max_tokens: maximum number of tokens in a batch, with padding.
        baked: passed to `inference`.

    Yields:
        The indices of a batch's examples, the model's outputs for them, and their `labels`, if any.
    """
    with inference(model, baked=baked):
        for indices, batch in in_batches(examples, collate, model.device, max_tokens):
            labels = batch.pop("labels", None)
            yield indices, model(**batch), labels
