"""Functions for models that process tokens one by one: checks of positions, and maps that skip padding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from floater.encodings.errors import PositionError
from floater.encodings.spec import StackSpec
from floater.positions import Positions


def even(spec: StackSpec) -> None:
    """Refuse an odd width, which sines and cosines cannot share.

    Raises:
        PositionError: if dim is odd.

    Example:
        >>> even(StackSpec(dim=3, heads=1, layers=1, max_length=16))
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: dim is 3; sinusoidal positions need an even one
    """
    if spec.dim % 2:
        raise PositionError(f"dim is {spec.dim}; sinusoidal positions need an even one")


def counted(places: Tensor, name: str, bound: int | None = None, *, below: int | None = None) -> Tensor:
    """Check that positions are integers below a bound, and return them.

    Args:
        places: (batch or 1, length) positions.
        name: name of the indices in error messages.
        bound: number of valid indices; None for no limit.
        below: see `Positions`; if it is within the bound, the positions are not read.

    Raises:
        PositionError: if they are real numbers, negative, or past the bound.

    Example:
        >>> counted(torch.tensor([[16]]), "axial positions", 16)
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: axial positions end at 15 (max_length 16); got 16
    """
    if places.is_floating_point():
        raise PositionError(f"{name} count tokens; real times need a model such as 'floater'")
    known = below is not None and (bound is None or below <= bound)
    if places.numel() and not known:
        low, high = (int(place) for place in places.aminmax())
        if low < 0:
            raise PositionError(f"{name} start at 0; got {low}")
        if bound is not None and high >= bound:
            raise PositionError(f"{name} end at {bound - 1} (max_length {bound}); got {high}")
    return places


def whole_sequence(positions: Positions, name: str) -> Tensor | None:
    """Return the mask of the tokens, for a model that must read a sequence at once.

    Returns:
        (batch or 1, T) bool, or None when all are tokens.

    Raises:
        PositionError: if there are keys of earlier steps, whose embeddings are not available, or a row
            contains more than one document.

    Example:
        >>> whole_sequence(Positions.arange(1, offset=4), "a GRU")
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: a GRU reads a whole sequence: decode without a cache
    """
    if positions.query.shape[1] != positions.key.shape[1]:
        raise PositionError(f"{name} reads a whole sequence: decode without a cache")
    if positions.document is not None:
        raise PositionError(f"{name} reads over the ends of packed documents: give it one document a row")
    return positions.key_valid


def skip_padding(x: Tensor, valid: Tensor | None, along: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a map along the tokens of each row as if there were no padding between or around them.

    Args:
        x: (batch, T, dim).
        valid: (batch or 1, T) bool, False where there is padding.
        along: (batch, T, dim) to the same shape; it sees the tokens first, and zeros after them.

    Returns:
        (batch, T, dim), each token's result at the token's slot.

    Example:
        >>> x = torch.tensor([[[7.0], [1.0], [2.0]]])
        >>> skip_padding(x, torch.tensor([[False, True, True]]), lambda y: y.cumsum(1)).flatten().tolist()
        [3.0, 1.0, 3.0]
    """
    if valid is None or not x.numel():
        return along(x) if x.numel() else x
    order = (~valid).long().argsort(dim=1, stable=True)[..., None].expand_as(x)
    found = along(x.masked_fill(~valid[..., None], 0.0).gather(1, order))
    return torch.empty_like(found).scatter(1, order, found)
