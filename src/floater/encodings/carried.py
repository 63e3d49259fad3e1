"""Numbers that the cache keeps beside keys, exact enough for sums and products along a text."""

from __future__ import annotations

import torch
from torch import Tensor


def carry(k: Tensor, numbers: Tensor) -> Tensor:
    """Return keys with numbers appended to each, as a rounded part and the rest.

    What bfloat16 rounds away from one number would add up along a text.

    Args:
        k: (batch, S, heads, width).
        numbers: (batch, S, heads, count), of the same precision or a wider one.

    Returns:
        (batch, S, heads, width + 2 count), in the precision of the keys.

    Example:
        >>> keys = carry(torch.zeros(1, 1, 1, 2, dtype=torch.bfloat16), torch.tensor([[[[0.3001]]]]))
        >>> round(float(carried(keys, 1, torch.float32)[1]), 4)
        0.3001
    """
    rounded = numbers.to(k.dtype)
    return torch.cat([k, rounded, (numbers - rounded).to(k.dtype)], -1)


def carried(k: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return keys without the `count` numbers that `carry` appended, and these in the given precision."""
    k, rounded, rest = torch.split(k, [k.shape[-1] - 2 * count, count, count], -1)
    return k, rounded.to(dtype) + rest.to(dtype)
