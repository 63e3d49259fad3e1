"""Positions of the tokens of a forward pass, from the arguments of the model's body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from floater.positions import Positions
from floater.pretrained.families import PlugError


class Places(NamedTuple):
    """Positions of the tokens of a forward pass, and a bound on them.

    Args:
        positions: positions, (batch or 1, T) integers.
        below: upper bound, above all positions; None if none is known without reading the positions.
    """

    positions: Tensor
    below: int | None


def tokens(
    given: Mapping[str, Any], length: int, *, padding: int | None = None, windowed: bool = False
) -> Places:
    """Return the positions of a body's tokens.

    They are the caller's `position_ids` minus the first position of the family, or the indices of tokens
    among the unpadded tokens of their text, including those in the cache.

    Args:
        given: arguments of the body's forward pass by name.
        length: number of tokens T.
        padding: id of padding tokens in families whose first position is that after the id, as in RoBERTa.
        windowed: True if a token attends only to the last tokens before it.

    Raises:
        PlugError: if the arguments do not determine the positions.

    Example:
        >>> mask = torch.tensor([[0, 0, 1, 1, 1]])
        >>> tokens({"attention_mask": mask}, 5).positions
        tensor([[0, 0, 0, 1, 2]])
        >>> tokens({"position_ids": torch.tensor([[2, 3, 1]])}, 3, padding=1).positions
        tensor([[0, 1, 0]])
    """
    mask, past = given.get("attention_mask"), _cached(given)
    ids = given.get("position_ids")
    if ids is not None:
        return Places(_from_ids(ids, mask, length, padding), None)
    cached = given.get("past_key_values") is not None
    if isinstance(mask, Tensor) and mask.ndim == 4 and cached and not windowed:
        return Places(_from_square(mask, length, past), past + length)
    if mask is not None:
        return _from_mask(mask, length, past, "attention_mask")
    words = given.get("input_ids")
    if padding is not None and words is not None:
        valid: Tensor = words != padding
        if torch.compiler.is_compiling() or not bool(valid.all()):
            index = (valid.cumsum(1) + past) * valid - 1
            return Places(index.clamp(min=0), past + length)  # unmasked padding gets position 0
    return _counted(given, length, past)


def source(given: Mapping[str, Any], length: int) -> Places:
    """Return the positions of the tokens that cross-attention reads: their indices among unpadded tokens.

    Args:
        given: arguments of the reading body's forward pass by name.
        length: number of tokens S.

    Raises:
        PlugError: if the mask does not show which tokens are padding.

    Example:
        >>> source({}, 3).positions
        tensor([[0, 1, 2]])
    """
    mask = given.get("encoder_attention_mask")
    return (
        _counted(given, length, 0) if mask is None else _from_mask(mask, length, 0, "encoder_attention_mask")
    )


def refuse(bad: Tensor, example: Tensor, message: str) -> None:
    """Refuse positions that are not valid; compiled code, which cannot read them, asserts instead.

    Args:
        bad: True for each position that is not valid.
        example: number that replaces {} in the message.
        message: message of the error.

    Raises:
        PlugError: if a position is not valid.

    Example:
        >>> at = torch.tensor([3, 9])
        >>> refuse(at > 8, at.max(), "position {} is above 8")
        Traceback (most recent call last):
        floater.pretrained.families.PlugError: position 9 is above 8
    """
    if torch.compiler.is_compiling():
        torch._assert_async(~bad.any(), message.format("another"))
    elif bool(bad.any()):
        raise PlugError(message.format(int(example)))


def _counted(given: Mapping[str, Any], length: int, past: int) -> Places:
    found = Positions.arange(length, offset=past, device=_device(given))
    return Places(found.query, found.below)


def _from_mask(mask: Any, length: int, past: int, name: str) -> Places:
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        what = f"of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
        raise PlugError(
            f"{name} is {what}, which does not say which tokens are padding, so their positions are "
            "unknown; give a mask (batch, length), or position_ids where the model takes them"
        )
    if mask.shape[1] != past + length:
        raise PlugError(
            f"{name} covers {mask.shape[1]} tokens; there are {length}, and {past} in the cache before them"
        )
    found = Positions.from_mask(mask, queries=length)
    return Places(found.query, found.below)


def _from_square(mask: Tensor, length: int, past: int) -> Tensor:
    """Return positions from a mask of pairs, (batch, 1, T, S): the number of keys that a token sees, less 1.

    A token sees itself and the tokens before it, including those in the cache.
    """
    visible = mask[:, 0, -length:] if mask.dtype == torch.bool else mask[:, 0, -length:] >= 0
    if not past and length > 1:
        after = visible.triu(1)
        refuse(
            after,
            after.sum(),
            "attention_mask shows tokens what comes after them, so it does not say where they stand; give a "
            "mask (batch, length), or position_ids where the model takes them",
        )
    return visible.sum(-1).sub(1).clamp(min=0)


def _from_ids(ids: Tensor, mask: Any, length: int, padding: int | None) -> Tensor:
    if ids.ndim == 1:
        ids = ids[None]
    if ids.ndim != 2 or ids.shape[1] != length:
        raise PlugError(f"position_ids are {tuple(ids.shape)}; they must be (batch or 1, {length})")
    first = 0 if padding is None else padding + 1
    positions = ids - first
    before = positions < 0
    if isinstance(mask, Tensor) and mask.ndim == 2:
        before = before & mask[:, -length:].bool()
    elif padding is not None:
        before = before & (ids != padding)
    refuse(before, ids.min(), f"position_ids begin at {{}}; the positions of this model begin at {first}")
    return positions.clamp(min=0)  # tokens before the first position are padding


def _cached(given: Mapping[str, Any]) -> int:
    cache = given.get("past_key_values")
    return 0 if cache is None else int(cache.get_seq_length())


def _device(given: Mapping[str, Any]) -> torch.device | None:
    names = ("input_ids", "inputs_embeds", "encoder_hidden_states")
    return next((value.device for name in names if (value := given.get(name)) is not None), None)
