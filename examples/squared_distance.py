"""A position encoding in one file: attention that falls with the squared distance, at a rate that is learned.

Run from this folder, by name, once the module is imported:

    floater train languages.yaml model.position=squared_distance \\
        imports=[language_identification,squared_distance]
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.encodings import AttentionContext, Card, PositionModel, StackSpec, register
from floater.positions import Positions


@register("squared_distance")
class SquaredDistance(PositionModel):
    """Add -(r_h (s - t))^2 to the logits of head h, with one learned rate r_h for all blocks.

    Args:
        spec: the stack of blocks.

    Example:
        >>> model = SquaredDistance(StackSpec(dim=8, heads=1, layers=1, max_length=16))
        >>> _ = nn.init.constant_(model.rate, 1.0)
        >>> model.bias(None, None, AttentionContext(model.prepare(Positions.arange(3)), 0))[0, 0, 0].tolist()
        [-0.0, -1.0, -4.0]
    """

    card = Card(
        paper="an example of this library",
        link="https://github.com",
        point="relative",
        equation="q_t k_s / sqrt(d_h) - (r_h (s - t))^2",
        parameters="h",
    )

    def __init__(self, spec: StackSpec) -> None:
        super().__init__(spec)
        self.rate = nn.Parameter(torch.empty(spec.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.rate, 1 / self.spec.max_length)

    def prepare(self, positions: Positions) -> Tensor:
        # (batch or 1, 1, T, S): computed once per forward pass and shared by all blocks
        return positions.delta[:, None].to(self.rate.dtype)

    def bias(self, q: Tensor | None, k: Tensor | None, context: AttentionContext[Tensor]) -> Tensor:
        return -(self.rate[:, None, None] * context.state).square()
