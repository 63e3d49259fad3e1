"""Positions of a text that grows by one token after another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from floater.positions.value import Positions


def continue_positions(
    positions: Positions, length: int, queries: int, *, mask: Tensor | None = None
) -> Positions:
    """Return the positions of the first tokens of a growing text, whose last ones are the queries.

    Tokens after those of `positions` continue them: each stands one position after the token before it, and
    has the language, the document and the segment of the last one. The order of another language
    (`reordered`) is then that of the text.

    Args:
        positions: positions of the first tokens of the text, or of more tokens than there are yet.
        length: number of tokens, cached ones included.
        queries: number of queries, the last of these tokens.
        mask: (batch, length or more), zero where a token is padding, if the positions do not say it.

    Returns:
        Positions of `queries` queries and `length` keys.

    Raises:
        ValueError: if the positions of further tokens do not follow from those of the first ones, those of
            the queries are not known, or there is a structure over another number of tokens.

    Example:
        >>> prompt = Positions(torch.tensor([[5, 6]]), torch.tensor([[5, 6]]))
        >>> step = continue_positions(prompt, 4, 1)
        >>> step.query.tolist(), step.key.tolist()
        ([[8]], [[5, 6, 7, 8]])
    """
    tokens = positions.key.shape[1]
    if positions.structure is not None and tokens != length:
        raise ValueError(
            f"the positions have a structure over {tokens} tokens; the text has {length}, and generated "
            "tokens are in no structure"
        )
    if length > tokens:
        positions = _extended(positions, length - tokens, mask)
    before = positions.key.shape[1] - positions.query.shape[1]
    first, last = length - queries - before, length - before
    if first < 0:
        raise ValueError(
            f"the positions have queries from token {before} on; token {length - queries} is one, too: give "
            "positions of all tokens, with as many queries as keys"
        )
    changed: dict[str, Any] = {name: _columns(positions, name, first, last) for name in _QUERIES}
    changed |= {name: _columns(positions, name, 0, length) for name in _KEYS}
    return positions._but(**changed)._with_range(positions.below)


_QUERIES = "query", "language", "reordered", "token", "query_time"
_KEYS = "key", "key_valid", "special", "document", "segment", "key_time", "coordinates"


def _columns(positions: Positions, name: str, first: int, last: int) -> Tensor | None:
    values: Tensor | None = getattr(positions, name)
    return None if values is None else values[:, first:last]


def _extended(positions: Positions, added: int, mask: Tensor | None) -> Positions:
    """Return positions of `added` more tokens, which are queries, too."""
    tokens = positions.key.shape[1]
    for what, unknown in (
        ("are real numbers", positions.key.is_floating_point() or positions.query.is_floating_point()),
        ("have times", positions.query_time is not None),
        ("have coordinates", positions.coordinates is not None),
    ):
        if unknown:
            raise ValueError(
                f"the positions of {tokens} tokens {what}, which do not say where token {tokens} is: give "
                "those of the tokens to be generated, too"
            )
    valid = positions.key_valid
    if valid is None and mask is not None:
        valid = mask[:, :tokens].bool()
    if valid is None or bool(valid[:, -1].all()):
        last = torch.full((1, 1), tokens - 1, device=positions.key.device)
    else:
        index = torch.arange(tokens, device=valid.device)
        last = index.masked_fill(~valid, 0).amax(1, keepdim=True)

    def append(values: Tensor, more: Tensor) -> Tensor:
        rows = max(len(values), len(more))
        return torch.cat([values.expand(rows, -1), more.expand(rows, added).to(values.dtype)], 1)

    def at_last(values: Tensor) -> Tensor:
        column = (last - (tokens - values.shape[1])).clamp(min=0)
        rows = max(len(values), len(column))
        return values.expand(rows, -1).gather(1, column.expand(rows, 1))

    position = at_last(positions.key) + torch.arange(1, added + 1, device=positions.key.device)
    changed: dict[str, Any] = {name: append(getattr(positions, name), position) for name in ("query", "key")}
    if positions.reordered is not None:
        changed["reordered"] = append(positions.reordered, position)
    for name in ("language", "document", "segment"):
        if (values := getattr(positions, name)) is not None:
            changed[name] = append(values, at_last(values))
    for name, value in (("key_valid", True), ("special", False)):
        if (values := getattr(positions, name)) is not None:
            changed[name] = F.pad(values, (0, added), value=value)
    below = None if positions.below is None else positions.below + added
    return positions._but(**changed, token=None)._with_range(below)
