"""Biases of attention that depend on positions alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from floater.encodings.model import PositionModel, StackSpec
from floater.encodings.relative.distances import Distances, consecutive
from floater.encodings.terms import AttentionTerms
from floater.positions import Positions


@dataclass(eq=False)
class DistanceBias:
    """A bias of the distance, whose matrix is made only where one is asked for.

    Args:
        distances: those that occur.
        table: the bias at each of them, (heads or 1, N).

    Example:
        >>> distances = Distances.of(Positions.arange(2), "alibi")
        >>> DistanceBias(distances, -distances.values[None].abs()).matrix
        tensor([[[[ 0, -1],
                  [-1,  0]]]])
    """

    distances: Distances
    table: Tensor
    _matrix: Tensor | None = field(default=None, init=False, repr=False)

    @property
    def matrix(self) -> Tensor:
        """Return the bias of each pair, (batch or 1, heads or 1, T, S), the same tensor for all blocks."""
        if self._matrix is None:  # no functools.cached_property, whose lock torch.compile refuses
            self._matrix = self.distances.plane(self.table)
        return self._matrix


def bias_of_distance(
    positions: Positions, name: str, added: Callable[[Tensor], Tensor]
) -> DistanceBias | Tensor:
    """Return a bias of the distance, once for each where whole positions count up, else for each pair.

    Args:
        positions: of queries and keys, whole or real.
        name: of the position model, for messages.
        added: the bias (..., heads, 1, N) or (..., heads, T, S) at distances (N,) or (..., 1, T, S).

    Example:
        >>> real = Positions.times(torch.tensor([[0.0, 0.5]]))
        >>> bias_of_distance(real, "alibi", lambda delta: -delta.abs()).tolist()
        [[[[-0.0, -0.5], [-0.5, -0.0]]]]
    """
    if consecutive(positions):
        distances = Distances.of(positions, name)
        return DistanceBias(distances, added(distances.values)[:, 0])
    return added(positions.delta[:, None])


class PositionBias(PositionModel):
    """Adds to the logits what depends on positions alone; subclasses say what in `added`.

    `floater.encodings.untied.reset` can untie [CLS] from any of them.
    """

    def added(self, state: Any, layer: int) -> DistanceBias | Tensor:
        """Return what is added in a block: a bias of the distance, or (batch or 1, heads or 1, T, S).

        By default it is what `prepare` returned, for all blocks.
        """
        if not isinstance(state, DistanceBias | Tensor):
            raise NotImplementedError(f"{type(self).__name__} must define added")
        return state

    def correlation(self, state: Any, layer: int) -> Tensor:
        """Return what is added in a block, (batch or 1, heads or 1, T, S)."""
        added = self.added(state, layer)
        return added.matrix if isinstance(added, DistanceBias) else added

    def attention_terms(self, q: Tensor, k: Tensor, state: Any, layer: int) -> AttentionTerms | None:
        added = self.added(state, layer)
        if isinstance(added, Tensor) or added.distances.index is not None:
            return None
        return AttentionTerms(bias=added.table)

    def bias(self, q: Tensor, k: Tensor, state: Any, layer: int) -> Tensor | None:
        return self.correlation(state, layer)


def adds_bias_alone(model: PositionModel) -> TypeGuard[PositionBias]:
    """Return whether a model does nothing but add a bias that depends on positions alone.

    Example:
        >>> from floater import build
        >>> [adds_bias_alone(build(name, dim=8, heads=2, layers=1, max_length=4)) for name in ("t5", "shaw")]
        [True, False]
    """
    other = ("embed", "block", "inputs", "projection_bias", "qkv", "logits", "weights", "mask", "value_bias")
    return isinstance(model, PositionBias) and not model.overrides(*other)


class DistanceTable(PositionBias):
    """A free scalar b(s - t) per distance, by default for every head of every block.

    Bounded: a distance past the table is an error.

    Args:
        spec: the stack of blocks it serves; distances stay below max_length.
        share_heads: one scalar for all heads.
        share_layers: one table for all blocks.
    """

    name: str
    bounded = True

    def __init__(self, spec: StackSpec, *, share_heads: bool, share_layers: bool) -> None:
        super().__init__(spec)
        layers, heads = 1 if share_layers else spec.layers, 1 if share_heads else spec.heads
        self.table = nn.Parameter(torch.empty(layers, heads, 2 * spec.max_length - 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=0.02)

    def prepare(self, positions: Positions) -> Distances:
        return Distances.of(positions, self.name, self.spec.max_length)

    def added(self, state: Distances, layer: int) -> DistanceBias | Tensor:
        table = self.table[layer if len(self.table) > 1 else 0]
        return DistanceBias(state, state.rows(table, self.spec.max_length - 1, 1))
