"""Loss by the number of tokens read before, as far past the training length as a window reaches.

The same tokens read in windows of the training length say what the longer window costs or brings, as in Press
et al. 2022, "Train short, test long", but token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from floater.tasks.language_modeling.score import Range, RowKey, Score
from floater.tasks.measurement import Array


@dataclass(frozen=True)
class Losses:
    """The loss of each predicted token of a text, in the order of the text, whatever the windows.

    Args:
        rows: numbers of the windows or rows that predict them, rising, (n,).
        places: where they stand in what `Record` gets of their row, from 0, (n,).
        nats: cross-entropy, (n,).
    """

    rows: Array
    places: Array
    nats: Array

    @property
    def contexts(self) -> Array:
        """Return the number of tokens of its window that a causal model has read before each."""
        return self.places + 1


def losses(score: Callable[..., Score], model: Any) -> tuple[Score, Losses]:
    """Score a model on a text, token by token.

    Args:
        score: of a model, with an argument `record`.
        model: to score.
    """
    found: dict[RowKey, tuple[Array, Array]] = {}

    def record(indices: Sequence[RowKey], values: Tensor, there: Tensor) -> None:
        for index, row, known in zip(indices, values, there, strict=True):
            if known.any():
                found[index] = known.nonzero().flatten().numpy(), row[known].double().numpy()

    total = score(model, record=record)
    ordered = [found[index] for index in sorted(found)]
    places, nats = (np.concatenate([row[i] for row in ordered]) for i in (0, 1))
    return total, Losses(np.repeat(np.arange(len(ordered)), [len(row) for row, _ in ordered]), places, nats)


def doubling(block: int, window: int) -> list[int]:
    """Return the training length, twice as much, and so on, below a window.

    Example:
        >>> doubling(128, 1024)
        [128, 256, 512]
    """
    return [block * 2**i for i in range(window.bit_length()) if block * 2**i < window]


def summed(keys: Array, *values: Array) -> tuple[Array, Array]:
    """Sum values that have a key in common, in the order of the keys.

    Args:
        keys: (n,) integers.
        *values: (n,) each.

    Returns:
        For each key the index of its first value, (k,), the sums of its values and their number, (k, v + 1).

    Example:
        >>> first, sums = summed(np.array([5, 5, 7]), np.array([1.0, 2.0, 4.0]))
        >>> first.tolist(), sums.tolist()
        ([0, 2], [[3.0, 2.0], [4.0, 1.0]])
    """
    _, first, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    sums = [np.bincount(inverse, weights=each) for each in values]
    return first, np.stack([*sums, counts.astype(float)], axis=1)


def ranges(found: Losses, near: Losses | None, edges: Sequence[int], window: int) -> list[Range]:
    """Average losses over ranges of context; one without a token is skipped.

    Args:
        found: in windows of `window` tokens.
        near: of the same text in windows of the training length.
        edges: the first context of every range but the first.
        window: tokens.

    Example:
        >>> found = Losses(np.zeros(3, int), np.arange(3), np.array([4.0, 2.0, 1.0]))
        >>> for part in ranges(found, None, [2], 4):
        ...     print(part.low, part.high, part.tokens, part.loss)
        1 1 1 4.0
        2 3 2 1.5
    """
    part = np.searchsorted(edges, found.contexts, side="right")
    first, sums = summed(part, found.nats, *([] if near is None else [near.nats]))
    bounds = [1, *edges, window]
    return [
        Range(
            low=bounds[index],
            high=bounds[index + 1] - 1,
            tokens=int(count),
            loss=nats[0] / count,
            near=None if near is None else nats[1] / count,
        )
        for index, (*nats, count) in zip(part[first].tolist(), sums.tolist(), strict=True)
    ]
