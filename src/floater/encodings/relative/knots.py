"""Functions of the distance as tables with knots of constant relative spacing."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_PER_OCTAVE = 1024
"""Knots from 1 + d to 2 (1 + d): linear interpolation errs by 1.2e-7 (|f'| + |f''|), f a function of the
logarithm of 1 + d; whole distances below this number are knots."""


def knots(end: float, device: torch.device | None = None) -> Tensor:
    """Return increasing distances from 0 past `end`, at which a function is computed for `interpolate`.

    Args:
        end: largest distance.
        device: device of the result.

    Returns:
        (N,) in float64.

    Example:
        >>> knots(3.0)[[0, 1, 1024, 2048, -1]].tolist()
        [0.0, 0.0009765625, 1.0, 3.0, 3.00390625]
    """
    mantissa, exponent = math.frexp(1 + end)  # 1 + end is 2 mantissa 2^(exponent - 1)
    count = math.floor(_PER_OCTAVE * (exponent + 2 * mantissa - 2)) + 2
    index = torch.arange(count, dtype=torch.float64, device=device)
    octave = (index / _PER_OCTAVE).floor()
    return octave.exp2() * (1 + index / _PER_OCTAVE - octave) - 1


def interpolate(table: Tensor, delta: Tensor) -> Tensor:
    """Read a function of each head at signed distances between knots.

    Beyond the last knot the function continues in a straight line.

    Args:
        table: (sides, heads, N), the function at the N `knots`; the second side is that of positive
            distances, and with one side the sign does not matter.
        delta: (batch or 1, heads or 1, T, S).

    Returns:
        (batch or 1, heads, T, S).

    Example:
        >>> at = knots(9.0)
        >>> squares = interpolate(at.square()[None, None], torch.tensor([[[[-2.0, 2.5]]]]).double())
        >>> [round(square, 5) for square in squares.flatten().tolist()]
        [4.0, 6.25]
    """
    sides, heads, count = table.shape
    mantissa, exponent = torch.frexp(1 + delta.abs())
    octave = (exponent.long() - 1) * _PER_OCTAVE
    within = (2 * mantissa - 1) * _PER_OCTAVE
    index = (octave + within.detach().long()).clamp(max=count - 2)
    share = within + (octave - index)
    row = torch.arange(heads, device=table.device)[:, None, None]
    if sides > 1:
        row = row + heads * (delta > 0)
    pairs = torch.stack([table[..., :-1], table.diff()], -1).flatten(0, -2)
    value, slope = F.embedding(index + row * (count - 1), pairs).unbind(-1)
    return value + share * slope
