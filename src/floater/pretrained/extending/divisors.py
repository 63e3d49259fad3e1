"""Methods that divide each rotary frequency by a number of its own, as Transformers' "longrope" does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from floater.pretrained.extending.errors import ExtendError

STILL = 1e24
"""Divisor of a frequency that does not rotate: at any position its angle is too small for float64."""


def clipped_factors(frequencies: Tensor, trained: int, clipped: int | None = None) -> list[float]:
    """Return the divisors of clipped rotary positions, whose slowest frequencies fade to none.

    Frequencies that complete no rotation in a text of the training length have unseen angles in longer ones.
    Of the last n frequencies, number k of 0, ..., n - 1 is multiplied by the raised cosine
    (1 + cos(pi k / (n - 1))) / 2 ("CoPE: Clipped RoPE as A Scalable Free Lunch for Long Context LLMs", 2026,
    arXiv 2602.05258): the first is kept, and the last does not rotate.

    Args:
        frequencies: rotary frequencies, the slowest last, (dim / 2,).
        trained: training length in tokens.
        clipped: number n of frequencies that fade, at least 2; by default those with a period above the
            training length.

    Returns:
        A divisor for each frequency, at least 1.

    Raises:
        ExtendError: if the default is below 2.

    Example:
        >>> [round(factor, 6) for factor in clipped_factors(torch.tensor([1.0, 0.1, 0.01, 0.001]), 32)]
        [1.0, 1.0, 2.0, 1e+24]
    """
    count = int((2 * math.pi / frequencies > trained).sum()) if clipped is None else clipped
    if count < 2:
        raise ExtendError(
            f"{count} of {len(frequencies)} frequencies complete no rotation in {trained} tokens, so that no "
            "two can fade; give clipped=, the number of frequencies"
        )
    kept = (1 + torch.linspace(0, math.pi, count, dtype=torch.float64).cos()) / 2
    return [1.0] * (len(frequencies) - count) + (1 / kept).clamp(max=STILL).tolist()


def dropped_factors(frequencies: Tensor, trained: int) -> list[float]:
    """Return the divisors that drop all rotation.

    The model must be trained for a short time without it ("Extending the Context of Pretrained LLMs by
    Dropping Their Positional Embeddings", 2025, arXiv 2512.12167).

    Args:
        frequencies: rotary frequencies, (dim / 2,).
        trained: training length in tokens, which does not matter.

    Example:
        >>> dropped_factors(torch.tensor([1.0, 0.01]), 32)
        [1e+24, 1e+24]
    """
    return [STILL] * len(frequencies)


DIVISORS: Mapping[str, Callable[..., list[float]]] = {"clipped": clipped_factors, "dropped": dropped_factors}
"""By method: function from the frequencies, the training length and the options to the divisors."""
