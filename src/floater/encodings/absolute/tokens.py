"""Functions for models that process tokens one by one: checks of positions, and maps that skip padding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

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


def whole_numbers(
    positions: Positions, name: str, limit: int | None = None, *, signed: bool = False
) -> Tensor:
    """Check that positions are integers, none negative or outside a table, and return those of the queries.

    Args:
        positions: positions of queries and keys.
        name: name of the position model, for error messages.
        limit: rows of its table; None for no limit.
        signed: whether positions may be negative, as where only their distances count.

    Raises:
        PositionError: if a position is real, negative, or past the table.

    Example:
        >>> whole_numbers(Positions.arange(3), "synthesizer", 2)
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: 'synthesizer' ends at position 1; position 2 was requested
    """
    both = positions.query, positions.key
    if any(each.is_floating_point() for each in both):
        raise PositionError(
            f"'{name}' counts tokens; real positions need a model such as 'floater' or 'rotary'"
        )
    below = positions.below
    in_range = signed or (below is not None and (limit is None or below <= limit))
    for each in both:
        low, high = torch.stack(each.aminmax()).tolist() if each.numel() and not in_range else (0, 0)
        if low < 0:
            raise PositionError(f"'{name}' starts at position 0; position {low} was requested")
        if limit is not None and high >= limit:
            raise PositionError(f"'{name}' ends at position {limit - 1}; position {high} was requested")
    return positions.query


def query_ends(positions: Positions) -> tuple[int, int]:
    """Return the least and the largest position of the queries, which are whole numbers; 0 of none.

    They are read from the device at once, and not at all where the positions know them. Compiled code, which
    cannot read them, gets bounds from the number of tokens where the positions have them.

    Example:
        >>> query_ends(Positions.arange(3, offset=2)), query_ends(Positions.arange(0))
        ((2, 4), (0, 0))
    """
    query = positions.query
    if positions.starts is not None:
        return positions.starts[0], positions.starts[0] + query.shape[1] - 1
    whole = query.shape == positions.key.shape and query.numel()
    if positions.below is not None and (torch.compiler.is_compiling() or whole):
        return 0, positions.below - 1
    first, last = torch.stack(query.aminmax()).tolist() if query.numel() else (0, 0)
    return first, last


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
        floater.encodings.errors.PositionError: a GRU reads a whole sequence: decode without a cache ...
    """
    if positions.query.shape[1] != positions.key.shape[1]:
        raise PositionError(
            f"{name} reads a whole sequence: decode without a cache (input_ids and use_cache=False)"
        )
    if positions.document is not None:
        raise PositionError(f"{name} reads over the ends of packed documents: give it one document a row")
    return positions.key_valid


def earlier_tokens(positions: Positions, count: int) -> list[Tensor]:
    """Return the slots of each key and of the tokens before it in its document, -1 where there is none.

    Args:
        positions: positions of queries and keys.
        count: number of tokens, the key's own included.

    Returns:
        `count` tensors (batch or 1, S); the first has the slots 0, 1, ..., padding included.

    Example:
        >>> [slots.tolist() for slots in earlier_tokens(Positions.packed([[2, 1]]), 2)]
        [[[0, 1, 2]], [[-1, 0, -1]]]
    """
    slots = torch.arange(positions.key.shape[1], device=positions.key.device)[None]
    valid, document = positions.key_valid, positions.document
    tokens = slots if valid is None else torch.where(valid, slots, -1)
    previous = F.pad(tokens.cummax(1).values, (1, -1), value=-1) if slots.numel() else tokens
    if document is not None:
        rows = _rows(document, previous)
        document, previous = document.expand(rows, -1), previous.expand(rows, -1)
        same = document.gather(1, previous.clamp(min=0)) == document
        previous = torch.where(same, previous, -1)
    earlier = [slots.expand_as(previous)]
    for _ in range(count - 1):
        earlier.append(torch.where(earlier[-1] < 0, -1, previous.gather(1, earlier[-1].clamp(min=0))))
    return earlier


def steps(positions: Positions, previous: Tensor) -> Tensor:
    """Return the position of each slot less that of the token before it in its document, (batch or 1, S).

    It is zero where there is no token before.

    Args:
        positions: positions of queries and keys.
        previous: the slots of the tokens before, the second result of `earlier_tokens`.

    Example:
        >>> positions = Positions.packed([[2, 3]])
        >>> steps(positions, earlier_tokens(positions, 2)[1])
        tensor([[0, 1, 0, 1, 1]])
    """
    key = positions.key
    rows = _rows(previous, key)
    previous = previous.expand(rows, -1)
    before = key.expand(rows, -1).gather(1, previous.clamp(min=0))
    return torch.where(previous < 0, 0, key - before)


def _rows(a: Tensor, b: Tensor) -> int:
    """Return the common number of rows, by shapes, as `len` and `max` fix a size that a trace leaves open."""
    rows: int = torch.broadcast_shapes(a.shape[:1], b.shape[:1])[0]  # type: ignore[no-untyped-call]
    return rows


def convolve(x: Tensor, taps: Tensor, earlier: list[Tensor]) -> Tensor:
    """Return weighted sums over each key and the tokens before it: a causal convolution that skips padding.

    Args:
        x: (batch, heads, S, width).
        taps: (count, heads or 1, 1, width), the key's own first.
        earlier: the result of `earlier_tokens`.

    Example:
        >>> x, taps = torch.tensor([[[[1.0], [10.0], [100.0]]]]), torch.tensor([1.0, 2.0]).view(2, 1, 1, 1)
        >>> convolve(x, taps, earlier_tokens(Positions.packed([[2, 1]]), 2)).flatten().tolist()
        [1.0, 12.0, 100.0]
    """
    mixed = torch.zeros_like(x)
    for tap, slots in zip(taps, earlier, strict=True):
        slot = slots[:, None, :, None].expand(*x.shape[:3], 1)
        read = x.gather(2, slot.clamp(min=0).expand_as(x)).masked_fill(slot < 0, 0.0)
        mixed = mixed + tap * read
    return mixed


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
    mapped = along(x.masked_fill(~valid[..., None], 0.0).gather(1, order))
    return torch.empty_like(mapped).scatter(1, order, mapped)
