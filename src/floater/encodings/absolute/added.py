"""Position vectors added to the input of blocks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from floater.encodings.checks import chosen_blocks
from floater.encodings.model import PositionModel
from floater.encodings.spec import StackSpec


class AddedVectors(PositionModel):
    """x + p^(n) at the input of the chosen blocks n (Liu et al. 2020, section 2.2, equation 5).

    At the first block they are added to the embeddings, before the dropout.

    Args:
        blocks: "input" (the first block), "all", or a list of block indices.
    """

    def __init__(self, spec: StackSpec, blocks: str | list[int] = "input") -> None:
        super().__init__(spec)
        self.blocks = chosen_blocks(blocks, spec.layers)

    def vectors(self, state: Any, layer: int) -> Tensor:
        """Return p^(n), (batch or 1, T, dim), for block n = layer + 1: by default the result of `prepare`."""
        vectors: Tensor = state
        return vectors

    def embed(self, x: Tensor, state: Any) -> Tensor:
        return x + self.vectors(state, 0).to(x.dtype) if 0 in self.blocks else x

    def block(self, x: Tensor, state: Any, layer: int) -> Tensor:
        return x + self.vectors(state, layer).to(x.dtype) if layer > 0 and layer in self.blocks else x
