"""Constructors of positions in time: given times, and events counted from the first of their row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from floater.positions.value import Positions


def times(cls: type[Positions], times: Tensor, mask: Tensor | None = None) -> Positions:
    """Place queries and keys at the same real positions, such as the times of events.

    Args:
        times: (batch or 1, T), in tokens or in any unit that the position model expects.
        mask: (batch or 1, T), non-zero where there is an event.

    Returns:
        Positions: query and key (batch or 1, T).

    Raises:
        ValueError: if a time is NaN or infinite, or the shapes do not fit together.

    Example:
        >>> from floater.positions import Positions
        >>> Positions.times(torch.tensor([[0.0, 0.5, 3.2]])).query.tolist()[0][1]
        0.5
    """
    if not bool(torch.isfinite(times).all()):
        raise ValueError("times hold a NaN or an infinity; every time must be finite")
    return cls(query=times, key=times, key_valid=None if mask is None else mask.bool())


def events(
    cls: type[Positions], times: Tensor, mask: Tensor | None = None, *, time_per_position: float = 1.0
) -> Positions:
    """Place events at their times: float64, counted from the first of each row.

    A shift of all times of a row changes nothing. Unix timestamps that differ by a second give
    distinct positions, however long after the first event; float32, which rounds them to minutes, is refused.

    Args:
        times: (batch or 1, T) integer or float64; those of a row do not decrease, and may repeat.
        mask: (batch or 1, T), non-zero where there is an event; padding has the time of the last event
            before it does.
        time_per_position: the time from one position to the next, such as the median time between two events.

    Returns:
        Positions: query and key (batch or 1, T), float64, from 0.

    Raises:
        ValueError: if a time is NaN or infinite or earlier than one before it (with its row and index),
            times are of lower precision, `time_per_position` is not positive, or shapes do not fit.

    Example:
        >>> from floater.positions import Positions
        >>> times = torch.tensor([[1325476708, 1325476709, 1325476712]])
        >>> Positions.events(times, time_per_position=2.0).query
        tensor([[0.0000, 0.5000, 2.0000]], dtype=torch.float64)
    """
    valid = torch.ones_like(times, dtype=torch.bool) if mask is None else mask.bool()
    if times.ndim != 2 or valid.shape != times.shape:
        raise ValueError(
            f"times are {tuple(times.shape)}, the mask {tuple(valid.shape)}; they must be (batch, length)"
        )
    if not 0 < time_per_position < float("inf"):
        raise ValueError(f"time_per_position is {time_per_position}; it must be a positive time")
    if times.is_floating_point() and times.dtype != torch.float64:
        raise ValueError(f"times are {times.dtype}, which rounds them; give float64 or integers")
    if bool((valid & ~times.isfinite()).any()):
        row, index = (valid & ~times.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"row {row}: time {index} is {times[row, index]}; every time must be finite")
    if not times.shape[1]:
        empty = times.to(torch.float64)
        return cls(empty, empty, None if mask is None else valid)
    first = times.gather(1, valid.long().argmax(1, keepdim=True))
    # integers are subtracted as such: float64 does not hold stamps of nanoseconds
    elapsed = (times - first).to(torch.float64).masked_fill(~valid, 0.0)
    reached = elapsed.cummax(1).values
    if bool((falls := valid & (elapsed < reached)).any()):
        row, index = falls.nonzero()[0].tolist()
        raise ValueError(
            f"row {row}: time {index} ({times[row, index].item():.17g}) is earlier than one before it; "
            "times of a row must not fall"
        )
    at = reached / time_per_position
    return cls(query=at, key=at, key_valid=None if mask is None else valid)
