"""Coordinates of the queries and keys of a batch on the axes of a grid."""

from __future__ import annotations

from torch import Tensor

from floater.encodings.errors import PositionError
from floater.positions import Positions


def coordinates(positions: Positions, axes: int, name: str) -> tuple[Tensor, Tensor]:
    """Return the coordinates of queries and keys; token t of a text is at t on every axis.

    M-RoPE (Wang et al. 2024, Qwen2-VL) also puts the tokens of a text on the diagonal.

    Args:
        positions: positions with or without `coordinates`.
        axes: number of axes that the model reads.
        name: name of the model, for error messages.

    Returns:
        (batch or 1, T, axes) and (batch or 1, S, axes).

    Raises:
        PositionError: if the coordinates have another number of axes.

    Example:
        >>> query, key = coordinates(Positions.arange(2), 2, "mrope")
        >>> key.tolist()
        [[[0, 0], [1, 1]]]
    """
    keys = positions.coordinates
    if keys is None:
        query, key = (part[..., None].expand(*part.shape, axes) for part in (positions.query, positions.key))
        return query, key
    if keys.shape[-1] != axes:
        raise PositionError(f"'{name}' reads {axes} axes; the coordinates have {keys.shape[-1]}")
    return keys[:, keys.shape[1] - positions.query.shape[1] :], keys
