"""The positions of the tokens of a batch, from the arguments of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import torch
from torch import Tensor

from floater.positions import Positions


def build_positions(
    mask: Tensor | None,
    length: int,
    earlier: int,
    device: torch.device,
    documents: Tensor | None = None,
) -> Positions:
    """Return the positions of `length` tokens that come after `earlier` cached ones.

    Args:
        mask: (batch, earlier + length), non-zero where there is a token; None when all are tokens.
        length: number of new tokens.
        earlier: number of cached tokens.
        device: device of the result if there is no mask.
        documents: (batch, earlier + length) ids of packed documents; None when each row is one.

    Returns:
        Positions of `length` queries and `earlier + length` keys.

    Raises:
        ValueError: if the mask or the ids do not cover the cached and the new tokens.

    Example:
        >>> build_positions(torch.tensor([[0, 1, 1, 1]]), 1, 3, torch.device("cpu")).query.tolist()
        [[2]]
    """
    for name, given in (("attention mask is", mask), ("document ids are", documents)):
        if given is not None and (given.ndim != 2 or given.shape[1] != earlier + length):
            raise ValueError(
                f"the {name} {tuple(given.shape)}; it must be (batch, {earlier + length}): "
                f"{earlier} cached and {length} new tokens"
            )
    if documents is not None:
        return Positions.from_documents(documents, mask=mask, queries=length)
    if mask is None:
        return Positions.arange(length, offset=earlier, device=device)
    return Positions.from_mask(mask, queries=length)


def _require(holds: Tensor, message: str | Callable[[], str]) -> None:
    """Raise a ValueError if a condition on tensors is false; compiled code raises when it runs."""
    if torch.compiler.is_compiling():
        torch._assert_async(holds, message if isinstance(message, str) else "positions begin at 0")
    elif not bool(holds):
        raise ValueError(message if isinstance(message, str) else message())


def at_ids(ids: Tensor, placed: Positions, batch: int) -> Positions:
    """Return positions by Hugging Face's `position_ids`, instead of those by the attention mask.

    Args:
        ids: (batch or 1, T) whole numbers from 0.
        placed: the result of `build_positions` for the mask and the cache.
        batch: number of samples.

    Returns:
        The tokens at their ids, padding as it was.

    Raises:
        ValueError: if their shape does not fit, one is negative, or with cached tokens they differ from those
            of the mask.

    Example:
        >>> placed = build_positions(None, 3, 0, torch.device("cpu"))
        >>> at_ids(torch.tensor([[0, 1, 0]]), placed, 2).key.tolist()
        [[0, 1, 0]]
    """
    queries, keys = placed.query.shape[1], placed.key.shape[1]
    if not isinstance(ids, Tensor):
        raise ValueError(f"position_ids is {ids!r}; it must be a tensor ({batch}, {queries})")
    whole = not ids.is_floating_point() and ids.dtype != torch.bool
    if ids.ndim != 2 or ids.shape[0] not in (1, batch) or ids.shape[1] != queries or not whole:
        raise ValueError(
            f"position_ids are {tuple(ids.shape)} of {ids.dtype}; they must be ({batch}, {queries}) whole "
            "numbers"
        )
    _require((ids >= 0).all(), lambda: f"position_ids begin at {int(ids.min())}; positions begin at 0")
    if keys == queries:
        return replace(placed, query=ids, key=ids)
    valid = placed.key_valid
    new = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid[:, keys - queries :]
    _require(
        ((ids == placed.query) | ~new).all(),
        "position_ids with cached tokens must continue their positions by the attention mask; give "
        "`positions` of all tokens for others",
    )
    return placed


def merge_positions(given: Positions, placed: Positions, mask: Tensor | None, batch: int) -> Positions:
    """Return given positions instead of those that `build_positions` computes from the attention mask.

    Args:
        given: the positions.
        placed: the result of `build_positions` for the mask and the cache.
        mask: the attention mask, or None.
        batch: number of samples.

    Returns:
        The given positions on the device of the others, with the fields of the others that the given ones do
        not have.

    Raises:
        ValueError: if they are of another number of tokens, or their padding differs from the mask's.

    Example:
        >>> merge_positions(Positions.arange(3), build_positions(None, 1, 2, torch.device("cpu")), None, 1)
        Traceback (most recent call last):
        ValueError: the positions are of 3 queries and 3 keys; there are 1 new and 2 cached tokens
    """
    given = given.to(placed.query.device)
    queries, keys = placed.query.shape[1], placed.key.shape[1]
    if (given.query.shape[1], given.key.shape[1]) != (queries, keys):
        raise ValueError(
            f"the positions are of {given.query.shape[1]} queries and {given.key.shape[1]} keys; "
            f"there are {queries} new and {keys - queries} cached tokens"
        )
    if given.batch not in (1, batch):
        raise ValueError(f"the positions are of {given.batch} samples; the batch has {batch}")
    if given.key_valid is not None and mask is not None:
        _require(
            (given.key_valid == mask.bool()).all(),
            "the attention mask and the positions differ in what is padding; give one of them",
        )
    lacking = [each.name for each in fields(given) if each.init and getattr(given, each.name) is None]
    return given.but(**{name: getattr(placed, name) for name in lacking})
