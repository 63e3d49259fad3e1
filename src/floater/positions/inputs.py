"""Positions of the tokens of a batch from the arguments of a model: mask, ids, documents and cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from floater.positions.tracing import require
from floater.positions.value import Positions


def build_positions(
    shape: Sequence[int],
    cached: int | Tensor = 0,
    *,
    mask: Tensor | None = None,
    pairs: Tensor | None = None,
    document_ids: Tensor | None = None,
    position_ids: Tensor | None = None,
    first: int = 0,
    below: int | None = None,
    device: torch.device | None = None,
) -> Positions:
    """Return the positions of the new tokens of a batch, and of the cached tokens before them.

    The position of a token is the first of these that is known:

    1. its entry in `position_ids`, less `first`, or 0 if it is padding before the first position;
    2. its index among the unpadded tokens of its document, from `document_ids`;
    3. its index among the unpadded tokens of its row, from `mask`;
    4. the number of tokens before it that it attends to, from `pairs`;
    5. its index in the row.

    Rules 1 and 4 say nothing of cached tokens: these have the positions `cached`. If only their number is
    known, the other rules apply to them, and the new tokens must continue the positions by these.

    Args:
        shape: batch size and number T of new tokens.
        cached: number of cached tokens, or their positions, (batch or 1, cached).
        mask: (batch, cached + T), non-zero where there is a token; None when all are tokens.
        pairs: (batch, 1, T, cached + T), True or not negative where a new token attends to a key; it must be
            causal. None to use the other rules.
        document_ids: (batch, cached + T) ids of packed documents; None when each row is one.
        position_ids: (T,) or (batch or 1, T) whole numbers, the T tokens' positions counted from `first`.
        first: id of the first position, such as 2 for RoBERTa.
        below: number above all positions by `position_ids`, for compiled code, which cannot read them.
        device: device of the result if there is neither a mask nor ids.

    Returns:
        Positions of T queries and `cached` + T keys, with the padding and the documents of a mask and ids.

    Raises:
        ValueError: if a mask or ids are no tensor, a shape does not fit, ids are not whole numbers or those
            of tokens less than `first`, `pairs` is not causal, or new tokens do not continue the positions of
            cached ones.

    Example:
        >>> build_positions((1, 1), 3, mask=torch.tensor([[0, 1, 1, 1]])).query
        tensor([[2]])
        >>> build_positions((1, 3), position_ids=torch.tensor([2, 3, 2]), first=2).key
        tensor([[0, 1, 0]])
    """
    length, count = shape[1], cached.shape[1] if isinstance(cached, Tensor) else cached
    for name, columns in (("attention mask is", mask), ("document ids are", document_ids)):
        if columns is not None and not isinstance(columns, Tensor):
            raise ValueError(
                f"the {name} a {type(columns).__name__}; it must be a tensor (batch, {count + length})"
            )
        if columns is not None and (columns.ndim != 2 or columns.shape[1] != count + length):
            raise ValueError(
                f"the {name} {tuple(columns.shape)}; it must be (batch, {count + length}): "
                f"{count} cached and {length} new tokens"
            )
    if document_ids is not None:
        positions = Positions.from_documents(document_ids, mask=mask, queries=length)
    elif mask is not None:
        positions = Positions.from_mask(mask, queries=length)
    else:
        device = device if position_ids is None else _checked(position_ids, shape).device
        positions = Positions.arange(length, offset=count, device=device)
    if position_ids is None and pairs is not None and mask is None and document_ids is None:
        position_ids, first, below = _ids_from_pairs(pairs, length), 0, pairs.shape[-1]
    query = positions.query
    if position_ids is not None:
        query = _checked(position_ids, shape) - first
        if positions.key_valid is not None:
            valid = positions.key_valid[:, count:]
            query = torch.where(valid, query, query.clamp(min=0))
        if count and not isinstance(cached, Tensor):
            continues = query == positions.query
            require(
                continues if positions.key_valid is None else continues | ~valid,
                "position_ids with cached tokens must continue their positions by the attention mask; give "
                "`positions` of all tokens for others",
            )
            return positions
        require(
            query >= 0,
            f"position_ids begin at {{}}; the positions of this model begin at {first}",
            lambda: query.min() + first,
        )
    elif not isinstance(cached, Tensor):
        return positions
    key = query
    if isinstance(cached, Tensor):
        rows = max(len(cached), len(query))
        key = torch.cat((cached.to(query.device).expand(rows, -1), query.expand(rows, -1)), 1)
    return positions._but(query=query, key=key)._with_range(below)


def _checked(ids: Tensor, shape: Sequence[int]) -> Tensor:
    """Return position ids, (batch or 1, T), if they are whole numbers of a batch of this shape."""
    batch, length = shape
    if not isinstance(ids, Tensor):
        raise ValueError(f"position_ids is {ids!r}; it must be a tensor ({batch}, {length})")
    ids = ids[None] if ids.ndim == 1 else ids
    whole = not ids.is_floating_point() and ids.dtype != torch.bool
    if ids.ndim != 2 or ids.shape[0] not in (1, batch) or ids.shape[1] != length or not whole:
        raise ValueError(
            f"position_ids are {tuple(ids.shape)} of {ids.dtype}; they must be ({batch}, {length}) whole "
            "numbers"
        )
    return ids


def visible_keys(mask: Tensor) -> Tensor:
    """Return which keys each query sees, (batch, T, S) bool.

    Args:
        mask: (batch, 1, T, S), bool, or numbers that are added to logits, negative where a key is hidden.

    Example:
        >>> visible_keys(torch.tensor([[[[0.0, -torch.inf]]]]))
        tensor([[[ True, False]]])
    """
    keys = mask[:, 0]
    return keys if keys.dtype == torch.bool else keys >= 0


def _ids_from_pairs(pairs: Tensor, length: int) -> Tensor:
    """Return the number of keys before it that each new token attends to."""
    visible = visible_keys(pairs[:, :, -length:])
    if length > 1:
        later = visible.triu(1 + visible.shape[-1] - length)
        require(
            ~later,
            "attention_mask lets tokens attend to later ones, so it does not determine their positions; give "
            "a mask (batch, length), or position_ids where the model takes them",
        )
    return visible.sum(-1).sub(1).clamp(min=0)


def merge_positions(positions: Positions, defaults: Positions, mask: Tensor | None, batch: int) -> Positions:
    """Complete the positions that a caller passes to a model by those that the model would compute.

    Args:
        positions: positions of the caller.
        defaults: result of `build_positions` for the mask and the cache.
        mask: attention mask, or None.
        batch: number of samples.

    Returns:
        The caller's positions on the device of the defaults, with the fields of the defaults that they lack.

    Raises:
        ValueError: if they are of another number of tokens, hold a NaN or an infinity, or their padding
            differs from the mask's.

    Example:
        >>> merge_positions(Positions.arange(3), build_positions((1, 1), 2), None, 1)
        Traceback (most recent call last):
        ValueError: the positions are of 3 queries and 3 keys; there are 1 new and 2 cached tokens
    """
    positions = positions.to(defaults.query.device)
    queries, keys = defaults.query.shape[1], defaults.key.shape[1]
    if (positions.query.shape[1], positions.key.shape[1]) != (queries, keys):
        raise ValueError(
            f"the positions are of {positions.query.shape[1]} queries and {positions.key.shape[1]} keys; "
            f"there are {queries} new and {keys - queries} cached tokens"
        )
    if positions.batch not in (1, batch):
        raise ValueError(f"the positions are of {positions.batch} samples; the batch has {batch}")
    positions._check_finite()  # programs take any numbers as inputs
    if positions.key_valid is not None and mask is not None:
        require(
            positions.key_valid == mask.bool(),
            "the attention mask and the positions differ in what is padding; give one of them",
        )
    missing = [name for name in Positions.__match_args__ if getattr(positions, name) is None]
    return positions._but(**{name: getattr(defaults, name) for name in missing})
