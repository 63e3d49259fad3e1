"""Positions as tensors: indices of tokens among the unpadded ones or in their document, elapsed times."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from floater.positions.checks import widened


def token_indices(valid: Tensor) -> tuple[Tensor | None, int | None]:
    """Return the index of each token among the unpadded tokens of its row, by one read of the mask.

    Padding gets the index of some token of the batch. A batch padded on the right only has one row of indices
    for all samples; compiled code cannot look at the mask, and has a row for each sample.

    Args:
        valid: (batch, S) bool, False at padding, with at least one column.

    Returns:
        (batch or 1, S) integers, None if there is no padding; and the largest index, None in compiled code.

    Raises:
        ValueError: if `torch.func.vmap` is over the mask, which then cannot be read.

    Example:
        >>> token_indices(torch.tensor([[True, True, True], [True, True, False]]))
        (tensor([[0, 1, 2]]), 2)
        >>> token_indices(torch.tensor([[True]]))
        (None, 0)
    """
    index = (valid.cumsum(1) - 1).clamp(min=0)
    # columns that are padding in every row must not reach past the longest row: a table may end there
    shared = torch.arange(valid.shape[1], device=valid.device).clamp(max=index.max())[None]
    same = ((index == shared) | ~valid).all()
    if torch.compiler.is_compiling():
        return torch.where(same, shared, index), None
    if torch._C._functorch.is_batchedtensor(valid):
        raise ValueError(
            "torch.func.vmap is over the attention mask, which decides on positions and cannot be read then; "
            "map over texts without padding, or pass the batch as it is"
        )
    whole, alike, last = torch.stack((valid.all().long(), same.long(), index.max())).tolist()
    return (None if whole else shared if alike else index), last


def document_ids(
    lengths: Sequence[Sequence[int]], device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Return the ids of documents that are packed into rows, one after the other, and the mask of tokens.

    Args:
        lengths: lengths of the documents of each row; rows are padded on the right.
        device: device of the tensors.

    Returns:
        Ids (batch, S), in which padding belongs to the last document of its row; and the mask (batch, S).

    Example:
        >>> document_ids([[2, 1], [1]])[0].tolist()
        [[0, 0, 1], [0, 0, 0]]
    """
    longest = max(map(sum, lengths), default=0)
    ids = torch.zeros(len(lengths), longest, dtype=torch.long, device=device)
    for row_ids, row in zip(ids, lengths, strict=True):
        end = sum(row)
        row_ids[:end] = torch.arange(len(row)).repeat_interleave(torch.tensor(row, dtype=torch.long))
        row_ids[end:] = len(row) - 1
    sizes = torch.tensor([sum(row) for row in lengths], device=device)
    return ids, torch.arange(longest, device=device) < sizes[:, None]


def indices_in_documents(ids: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index of each token among the unpadded tokens of its document, and the document's number.

    Args:
        ids: (batch, S) integers; a run of equal ids is a document.
        valid: (batch, S) bool, False at padding.

    Returns:
        Indices and numbers, both (batch, S) integers. Padding gets the index of a token, so that it reaches
        past no table.

    Example:
        >>> ids = torch.tensor([[7, 7, 4]])
        >>> [values.tolist() for values in indices_in_documents(ids, torch.ones_like(ids, dtype=torch.bool))]
        [[[0, 1, 0]], [[0, 0, 1]]]
    """
    begins = torch.ones_like(ids, dtype=torch.bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    earlier = valid.cumsum(1) - valid.long()
    index = earlier - (earlier * begins).cummax(1).values if ids.shape[1] else earlier
    return torch.where(valid, index, index.sub(1).clamp(min=0)), begins.cumsum(1) - 1


def elapsed_positions(times: Tensor, valid: Tensor | None, time_per_position: float) -> Tensor:
    """Return times as positions, counted from the first of each row; see `Positions.events`.

    Args:
        times: (batch or 1, T) integer or float64; those of a row do not decrease.
        valid: (batch or 1, T) bool, False at padding; None without padding.
        time_per_position: time from one position to the next.

    Returns:
        (batch or 1, T) float64; padding has the position of the last event before it.

    Raises:
        ValueError: as `Positions.events`.
    """
    if not isinstance(times, Tensor) or times.dtype == torch.bool or times.is_complex():
        kind = str(times.dtype) if isinstance(times, Tensor) else f"a {type(times).__name__}"
        raise ValueError(f"times are {kind}; they must be a tensor of integers or float64")
    valid = torch.ones_like(times, dtype=torch.bool) if valid is None else valid
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
        return times.to(torch.float64)
    # integers are subtracted as such: float64 does not hold stamps of nanoseconds
    counts = widened(times)
    first = counts.gather(1, valid.long().argmax(1, keepdim=True))
    elapsed = (counts - first).masked_fill(~valid, 0)
    far = valid & ((elapsed > 0) != (counts > first))  # the difference of integers wraps around
    elapsed = elapsed.to(torch.float64)
    far |= (elapsed / time_per_position).isinf()
    if bool(far.any()):
        row, index = far.nonzero()[0].tolist()
        raise ValueError(f"row {row}: time {index} is too far from the first one to be a position")
    reached = elapsed.cummax(1).values
    if bool((falls := valid & (elapsed < reached)).any()):
        row, index = falls.nonzero()[0].tolist()
        time = times[row, index].item()
        said = f"{time:.17g}" if isinstance(time, float) else time
        raise ValueError(
            f"row {row}: time {index} ({said}) is earlier than one before it; times of a row must not fall"
        )
    return reached / time_per_position
