"""Interfaces of encodings whose times a block computes from the text."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from floater.positions import Positions


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
            query: times of the queries, (batch or 1, heads or 1, T).
            key: times of the keys, (batch or 1, heads or 1, S).
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
