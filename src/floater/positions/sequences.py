"""Constructors of token positions: counted, by an attention mask, within packed documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from floater.positions.value import Positions


def arange(
    cls: type[Positions], length: int, *, offset: int = 0, device: torch.device | str | None = None
) -> Positions:
    """Count `length` queries that come after `offset` earlier keys.

    Args:
        length: number of queries T.
        offset: number of keys before them (cached decoding); there are offset + T keys.
        device: device of the tensors.

    Returns:
        Positions shared by the batch: query (1, T), key (1, offset + T).

    Raises:
        ValueError: if `length` or `offset` is negative.

    Example:
        >>> from floater.positions import Positions
        >>> step = Positions.arange(1, offset=4)
        >>> step.query.tolist(), step.key.tolist()
        ([[4]], [[0, 1, 2, 3, 4]])
    """
    if length < 0 or offset < 0:
        raise ValueError(f"length {length} and offset {offset} must not be negative")
    key = torch.arange(offset + length, device=device)[None]
    return cls(query=key[:, offset:], key=key)._below(offset + length)


def from_mask(cls: type[Positions], mask: Tensor, *, queries: int | None = None) -> Positions:
    """Give each token its index among the unpadded tokens of its row.

    Padding may be on the left, on the right, or between; it has the position of some token of the
    batch. A batch padded on the right only has positions 0, 1, 2, ... in every row, and shares one row of
    positions; code that is compiled cannot look, and has a row for each sample.

    Args:
        mask: (batch, S), non-zero where there is a token.
        queries: number of queries, the last columns (cached decoding); None means all.

    Returns:
        Positions: query (batch or 1, T), key (batch or 1, S), key_valid (batch, S) or None.

    Raises:
        ValueError: if the mask is not (batch, S), or has fewer columns than there are queries.

    Example:
        >>> from floater.positions import Positions
        >>> Positions.from_mask(torch.tensor([[0, 0, 1, 1]])).query.tolist()
        [[0, 0, 0, 1]]
        >>> Positions.from_mask(torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])).query.tolist()
        [[0, 1, 2, 3]]
    """
    if mask.ndim != 2:
        raise ValueError(f"the mask is {tuple(mask.shape)}; it must be (batch, length)")
    valid = mask.bool()
    length = valid.shape[1]
    queries = length if queries is None else queries
    if not 0 <= queries <= length:
        raise ValueError(f"there are {queries} queries; the mask has {length} columns")
    compiled = torch.compiler.is_compiling()
    if 0 in valid.shape or (not compiled and bool(valid.all())):
        return cls.arange(queries, offset=length - queries, device=mask.device)
    index = (valid.cumsum(1) - 1).clamp(min=0)
    # columns that are padding in every row must not reach past the longest row: a table may end there
    plain = torch.arange(length, device=mask.device).clamp(max=index.max())[None]
    shared = ((index == plain) | ~valid).all()
    key = torch.where(shared, plain, index) if compiled else (plain if bool(shared) else index)
    return cls(query=key[:, length - queries :], key=key, key_valid=valid)._below(length)


def packed(
    cls: type[Positions], lengths: Sequence[Sequence[int]], *, device: torch.device | str | None = None
) -> Positions:
    """Pack documents into rows, one after the other; positions start at 0 in each.

    Args:
        lengths: the lengths of the documents of each row; rows are padded on the right.
        device: device of the tensors.

    Returns:
        Positions as of `from_documents`.

    Raises:
        ValueError: if a length is below 1.

    Example:
        >>> from floater.positions import Positions
        >>> positions = Positions.packed([[2, 3], [4]])
        >>> positions.query.tolist(), positions.document[0].tolist()
        ([[0, 1, 0, 1, 2], [0, 1, 2, 3, 3]], [0, 0, 1, 1, 1])
    """
    if any(length < 1 for row in lengths for length in row):
        raise ValueError(f"documents have the lengths {list(map(list, lengths))}; each must be at least 1")
    longest = max(map(sum, lengths), default=0)
    ids = torch.zeros(len(lengths), longest, dtype=torch.long, device=device)
    for of_row, row in zip(ids, lengths, strict=True):
        end = sum(row)
        of_row[:end] = torch.arange(len(row)).repeat_interleave(torch.tensor(row, dtype=torch.long))
        of_row[end:] = len(row) - 1
    sizes = torch.tensor([sum(row) for row in lengths], device=device)
    return cls.from_documents(ids, mask=torch.arange(longest, device=device) < sizes[:, None])


def from_documents(
    cls: type[Positions], ids: Tensor, *, mask: Tensor | None = None, queries: int | None = None
) -> Positions:
    """Give each token its index among the unpadded tokens of its document.

    Args:
        ids: (batch, S) integer ids; a run of equal ids is a document, and an id that comes back later in
            the row is another document.
        mask: (batch, S), non-zero where there is a token; None when all are tokens.
        queries: number of queries, the last columns (cached decoding); None means all.

    Returns:
        Positions: query (batch, T), key (batch, S), key_valid (batch, S) or None, document (batch, S).

    Raises:
        ValueError: if ids and mask are not (batch, S) both, or there are fewer columns than queries.

    Example:
        >>> from floater.positions import Positions
        >>> Positions.from_documents(torch.tensor([[7, 7, 4, 4, 7]])).key.tolist()
        [[0, 1, 0, 1, 0]]
    """
    valid = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    if ids.ndim != 2 or valid.shape != ids.shape:
        raise ValueError(
            f"document ids are {tuple(ids.shape)}, the mask {tuple(valid.shape)}; "
            "they must be (batch, length)"
        )
    length = ids.shape[1]
    queries = length if queries is None else queries
    if not 0 <= queries <= length:
        raise ValueError(f"there are {queries} queries; the ids have {length} columns")
    begins = torch.ones_like(ids, dtype=torch.bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    earlier = valid.cumsum(1) - valid.long()
    key = earlier - (earlier * begins).cummax(1).values if length else earlier
    # padding stands where a token does, so that it reaches past no table
    key = torch.where(valid, key, key.sub(1).clamp(min=0))
    whole = not torch.compiler.is_compiling() and bool(valid.all())
    return cls(
        query=key[:, length - queries :],
        key=key,
        key_valid=None if whole else valid,
        document=begins.cumsum(1) - 1,
    )._below(length)
