"""Biases of attention that depend on positions alone."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from floater.encodings.model import PositionModel, StackSpec
from floater.encodings.relative.distances import Distances
from floater.positions import Positions


class PositionBias(PositionModel):
    """Adds to the logits what depends on positions alone; subclasses say what.

    `floater.encodings.untied.reset` can untie [CLS] from any of them.
    """

    def correlation(self, state: Any, layer: int) -> Tensor:
        """Return what is added in a block, (batch or 1, heads or 1, T, S)."""
        raise NotImplementedError(f"{type(self).__name__} must define correlation")

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

    def correlation(self, state: Distances, layer: int) -> Tensor:
        table = self.table[layer if len(self.table) > 1 else 0]
        return state.plane(state.rows(table, self.spec.max_length - 1, 1))
