"""Continuous-Time Linear Positional Embedding for Irregular Time Series Forecasting (Kim and Lee 2024)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.encodings.absolute.added import AddedVectors
from floater.encodings.card import Card
from floater.encodings.precise import Precise, at_least_float32
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("linear_time")
class LinearTime(Precise, AddedVectors):
    """A learned linear function of the time is added to the embeddings (CTLPE).

    p(t) = a t + b with learned vectors a and b, of the sequence's own times. Times are in units of
    max_length, and a and b start as torch's linear layers with one input do. Positions may be real, and there
    is no maximum length; unlike sinusoids, vectors grow with the time. The authors' repository has Informer's
    embeddings and a neural controlled differential equation of the time, not this function.

    Args:
        spec: the stack of blocks.
        blocks: "input" (the first block), "all" (each with vectors of its own), or a list of block indices.

    Raises:
        PositionError: if a block does not exist.

    Example:
        >>> model = LinearTime(StackSpec(dim=2, heads=1, layers=1, max_length=4))
        >>> _ = nn.init.ones_(model.slope), nn.init.zeros_(model.offset)
        >>> model.vectors(model.prepare(Positions.times(torch.tensor([[0.0, 2.0]]))), 0)[0, :, 0].tolist()
        [0.0, 0.5]
    """

    card = Card(
        paper="Kim and Lee 2024",
        link="https://arxiv.org/abs/2409.20092",
        stacks={"encoder": "time series"},
        point="absolute",
        equation="x_t + a t + b",
        parameters="2 * d",
    )

    def __init__(self, spec: StackSpec, *, blocks: str | list[int] = "input") -> None:
        super().__init__(spec, blocks)
        shape, dtype = (len(self.blocks), spec.dim), at_least_float32()
        self.slope, self.offset = (nn.Parameter(torch.empty(shape, dtype=dtype)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in (self.slope, self.offset):
            nn.init.uniform_(parameter, -1.0, 1.0)  # one input

    def prepare(self, positions: Positions) -> Tensor:
        """Return the times in units of max_length, (batch or 1, T)."""
        return (positions.query.double() / self.spec.max_length).to(self.slope.dtype)

    def vectors(self, state: Tensor, layer: int) -> Tensor:
        block = self.blocks.index(layer)
        return torch.addcmul(self.offset[block], state[..., None], self.slope[block])
