"""Loss by context, the number of tokens read before, up to windows beyond the training length.

The loss of the same tokens in windows of the training length shows the cost or benefit of the longer window,
as in Press et al. 2022, "Train short, test long", but token by token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from floater.lab.tasks.language_modeling.score import Losses, Range
from floater.lab.tasks.measurement import summed


def doubling(block: int, window: int) -> list[int]:
    """Return the training length, twice that length, and so on, up to below a window.

    Example:
        >>> doubling(128, 1024)
        [128, 256, 512]
    """
    return [block * 2**i for i in range(window.bit_length()) if block * 2**i < window]


def ranges(losses: Losses, near: Losses | None, edges: Sequence[int], window: int) -> list[Range]:
    """Average losses over ranges of context; a range without a token is skipped.

    Args:
        losses: losses in windows of `window` tokens.
        near: losses of the same text in windows of the training length.
        edges: first context of every range but the first; those beyond the window are skipped.
        window: number of tokens of a window.

    Example:
        >>> losses = Losses(np.zeros(3, int), np.arange(3), np.array([4.0, 2.0, 1.0]))
        >>> for part in ranges(losses, None, [2], 4):
        ...     print(part.low, part.high, part.tokens, part.loss)
        1 1 1 4.0
        2 3 2 1.5
    """
    bounds = [1, *(edge for edge in edges if 1 < edge < window), window]
    part = np.searchsorted(bounds[1:], losses.contexts, side="right")
    first, sums = summed(part, losses.nats, *([] if near is None else [near.nats]))
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
