"""Functions of the distance as tables with knots of constant relative spacing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from floater.flow.second_derivatives import refuse_second_derivatives

_BITS = 9
_PER_OCTAVE = 2**_BITS
"""Knots from 1 + d to 2 (1 + d): linear interpolation errs by 5e-7 (|f'| + |f''|), f a function of the
logarithm of 1 + d; whole distances below this number are knots."""


def knots(end: float, device: torch.device | None = None) -> Tensor:
    """Return increasing distances from 0 past `end`, at which a function is computed for `interpolate`.

    Args:
        end: largest distance.
        device: device of the result.

    Returns:
        (N,) in float64.

    Example:
        >>> knots(3.0)[[0, 1, 512, 1024, -1]].tolist()
        [0.0, 0.001953125, 1.0, 3.0, 3.0078125]
    """
    index = torch.arange(math.floor(_index(end)) + 2, dtype=torch.float64, device=device)
    octave = (index / _PER_OCTAVE).floor()
    distances: Tensor = octave.exp2() * (1 + index / _PER_OCTAVE - octave) - 1
    return distances


def fraction(end: float) -> float:
    """Return the place of `end` between the last two of its `knots`, from 0 to below 1.

    Example:
        >>> fraction(3.0), fraction(3.0 + 1 / 512)  # there are 512 knots from 3 to 7
        (0.0, 0.25)
    """
    return _index(end) % 1


def _index(distance: float) -> float:
    """Return the index of a distance among the knots; a fraction between two of them."""
    mantissa, exponent = math.frexp(1 + distance)  # 1 + distance is 2 mantissa 2^(exponent - 1)
    index: float = _PER_OCTAVE * (exponent + 2 * mantissa - 2)
    return index


def interpolate(table: Tensor, delta: Tensor) -> Tensor:
    """Read a function of each head at signed distances between knots.

    Beyond the last knot the function continues with its last slope.

    Args:
        table: (sides, heads, N), the function at the N `knots`; the second side is that of positive
            distances, and with one side the sign does not matter.
        delta: (batch or 1, heads or 1, T, S), in single or double precision.

    Returns:
        (batch or 1, heads, T, S), in that precision.

    Example:
        >>> at = knots(9.0)
        >>> squares = interpolate(at.square()[None, None], torch.tensor([[[[-2.0, 2.5]]]]).double())
        >>> [round(square, 5) for square in squares.flatten().tolist()]
        [4.0, 6.25]
    """
    out: Tensor = _Interpolated.apply(table, delta)  # type: ignore[no-untyped-call]
    return out


class _Interpolated(torch.autograd.Function):
    """Values between knots, with gradients of the table and of the distances.

    The knots are the floating-point numbers 1 + d with a mantissa of `_BITS`. So the leading bits of 1 + d
    are the index of the knot below it, and the others its place between two knots.

    In place, as each new tensor of all pairs costs more than the arithmetic on it.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, delta: Tensor) -> Tensor:
        sides, heads, count = table.shape
        bits, integer, mantissa = _bits(delta)
        shift = mantissa - _BITS
        share = (bits & ((1 << shift) - 1)).to(delta.dtype).div_(1 << shift)
        whole = bits.__irshift__(shift).sub_((1023 if mantissa == 52 else 127) << _BITS)  # less that of 1 + 0
        index = whole.clamp(max=count - 2)
        share += whole.sub_(index)
        if sides > 1:
            index += (delta > 0).to(integer).mul_(heads * count)
        row = torch.arange(heads, dtype=integer, device=delta.device)[:, None, None]
        index = index + count * row
        flat = table.flatten().to(delta.dtype)
        low = flat.index_select(0, index.flatten()).view(index.shape)
        ctx.save_for_backward(table, delta, index, share)
        return low.addcmul_(share, _rises(flat, index))

    @staticmethod
    @refuse_second_derivatives("a bias between knots", "an encoding without a clock")
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (gradient,), (table, delta, index, share) = gradients, ctx.saved_tensors
        table_gradient = delta_gradient = None
        if ctx.needs_input_grad[0]:
            upper = gradient * share
            flat, at = gradient.new_zeros(table.numel()), index.flatten()
            flat[1:].index_add_(0, at, upper.flatten())
            flat.index_add_(0, at, torch.sub(gradient, upper, out=upper).flatten())
            table_gradient = flat.view(table.shape).to(table.dtype)
        if ctx.needs_input_grad[1]:
            # the spacing of knots doubles with each octave
            bits, _, mantissa = _bits(delta)
            octave = bits.__irshift__(mantissa).__ilshift__(mantissa).view(delta.dtype)
            slope = _rises(table.flatten().to(delta.dtype), index).mul_(gradient).div_(octave)
            delta_gradient = slope.mul_(delta.sign()).mul_(_PER_OCTAVE).sum_to_size(delta.shape)
        return table_gradient, delta_gradient


def _bits(delta: Tensor) -> tuple[Tensor, torch.dtype, int]:
    """Return the bits of 1 + d as integers, their dtype, and the number of bits of the mantissa."""
    integer, mantissa = (torch.int32, 23) if delta.dtype == torch.float32 else (torch.int64, 52)
    return delta.abs().add_(1).view(integer), integer, mantissa


def _rises(values: Tensor, index: Tensor) -> Tensor:
    """Return the rise from each knot of an index to the next."""
    return (values[1:] - values[:-1]).index_select(0, index.flatten()).view(index.shape)
