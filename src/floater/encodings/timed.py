"""Interfaces of encodings whose times a block computes from the text."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from floater.encodings.precise import at_least_float32
from floater.positions import Positions


def time_differences(query: Tensor, key: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the time of each key less that of each query, (..., T, S).

    It is as exact as its type, however far from 0 the times are: each is read as a rounded time and the
    rest. A matrix of all pairs in double precision would be twice as large.

    Args:
        query: times of the queries, (..., T), in double precision.
        key: times of the keys, (..., S), likewise.
        dtype: type of the model; that of the result is at least float32.

    Example:
        >>> at = torch.tensor([1e9, 1e9 + 1], dtype=torch.float64)
        >>> time_differences(at, at, torch.float32)
        tensor([[ 0.,  1.],
                [-1.,  0.]])
    """
    dtype = at_least_float32(dtype)
    if dtype == key.dtype:
        return key[..., None, :] - query[..., None]
    rounded, rounded_query = key.detach().to(dtype), query.detach().to(dtype)
    rest, rest_query = (key - rounded).to(dtype), (query - rounded_query).to(dtype)
    return (rest[..., None, :] - rest_query[..., None]).add_(rounded[..., None, :] - rounded_query[..., None])


@runtime_checkable
class TimedRotation(Protocol):
    """An encoding that rotates queries and keys, and does so at any times of heads or of pairs.

    Example:
        >>> from floater import build
        >>> isinstance(build("rotary", dim=8, heads=2, layers=1, max_length=16), TimedRotation)
        True
    """

    turned: int
    """Number of components of a head that rotate, two a pair."""

    def prepare_times(self, positions: Positions) -> Any:
        """Return what `turns_at` reads beside the times, computed once per forward pass."""

    def turns_at(self, times: Tensor, state: Any, layer: int, angles: Tensor | None = None) -> Any:
        """Return the rotations of a block.

        Args:
            times: (batch or 1, T, heads or 1, pairs or 1).
            state: the result of `prepare_times`.
            layer: index of the block.
            angles: radians that are added to those of the times, broadcastable to (batch, T, heads, pairs).
        """

    def rotate(self, x: Tensor, turns: Any) -> Tensor:
        """Rotate queries or keys (batch, T, heads, head_dim) by the rotations of `turns_at`."""


@runtime_checkable
class TimedBias(Protocol):
    """An encoding that adds a bias of the times of queries and keys, at any times of each head.

    Example:
        >>> from floater import build
        >>> names = "floater_relative", "t5"  # buckets have no gradient in the time
        >>> [isinstance(build(name, dim=8, heads=2, layers=1, max_length=16), TimedBias) for name in names]
        [True, False]
    """

    def prepare_times(self, positions: Positions) -> Any:
        """Return what `bias_at` reads beside the times, computed once per forward pass."""

    def bias_at(self, query: Tensor, key: Tensor, state: Any, layer: int) -> Tensor:
        """Return the bias of a block, (batch or 1, heads, T, S), in at least single precision.

        Args:
            query: times of the queries, (batch or 1, heads or 1, T), in double precision; see
                `time_differences`.
            key: times of the keys, (batch or 1, heads or 1, S), likewise.
            state: the result of `prepare_times`.
            layer: index of the block.
        """


@runtime_checkable
class TimedVectors(Protocol):
    """An encoding that adds vectors to what a block reads, or to its queries, keys and values, at any times.

    Example:
        >>> from floater import build
        >>> isinstance(build("sinusoidal", dim=8, heads=2, layers=1, max_length=16), TimedVectors)
        True
    """

    def prepare_times(self, positions: Positions) -> Any:
        """Return what `vectors_at` reads beside the times, computed once per forward pass.

        A clock gives times from 0 to twice the last position.
        """

    def vectors_at(self, times: Tensor, state: Any, layer: int, name: str) -> Tensor | None:
        """Return the vectors of a block.

        Args:
            times: (batch, T).
            state: the result of `prepare_times`.
            layer: index of the block.
            name: "input" for what the block reads, or a name of `projection_bias`.

        Returns:
            (batch, T, dim); None for no vectors.
        """
