"""Position vectors that were solved before: a plain value with look-up and growth."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Store:
    """Vectors at known positions.

    Args:
        positions: Strictly increasing positions (U,), float64, on the CPU.
        values: Vectors (rows, U, dim), without gradient.

    Example:
        >>> store = Store(torch.arange(3.0), torch.zeros(1, 3, 2))
        >>> store.dense
        True
    """

    positions: Tensor
    values: Tensor
    dense: bool = field(init=False)

    def __post_init__(self) -> None:
        """Note whether the positions are 0, 1, ..., U - 1, each being its own index."""
        count = torch.arange(len(self.positions))
        object.__setattr__(self, "dense", bool((self.positions == count).all()))

    def find(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Look positions up: their indices, and whether each is held (its index is right only then)."""
        index = torch.searchsorted(self.positions, wanted).clamp(max=len(self.positions) - 1)
        return index, self.positions[index] == wanted

    def merged(self, positions: Tensor, values: Tensor) -> Store:
        """A store that also holds these vectors; those held before are unchanged."""
        together, order = torch.cat((self.positions, positions)).sort()
        both = torch.cat((self.values, values), dim=1)
        return Store(together, both[:, order.to(both.device)].contiguous())
