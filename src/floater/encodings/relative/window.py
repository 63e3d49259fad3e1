"""Longformer: The Long-Document Transformer (Beltagy, Peters, Cohan 2020)."""

from __future__ import annotations

from torch import Tensor

from floater.encodings.card import Card
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("window")
class Window(PositionModel):
    """Longformer: The Long-Document Transformer (Beltagy, Peters, Cohan 2020, section 3.1): the window alone.

    A query attends to keys at most `size` away, on both sides. Positions may be real.

    Args:
        size: the farthest distance; None means an eighth of max_length, at least 1.

    Raises:
        PositionError: if size is negative.

    Example:
        >>> model = Window(StackSpec(dim=8, heads=1, layers=1, max_length=16), size=1)
        >>> model.mask(AttentionContext(model.prepare(Positions.arange(3)), 0)).int()
        tensor([[[[1, 1, 0],
                  [1, 1, 1],
                  [0, 1, 1]]]], dtype=torch.int32)
    """

    card = Card(
        paper="Beltagy et al. 2020",
        link="https://arxiv.org/abs/2004.05150",
        stacks={"encoder": "Longformer", "causal": "language models"},
        point="relative",
        equation="q_t k_s / sqrt(d_h) - (inf where |s - t| > w)",
    )

    def __init__(self, spec: StackSpec, *, size: int | None = None) -> None:
        super().__init__(spec)
        self.size = max(1, spec.max_length // 8) if size is None else size
        if self.size < 0:
            raise PositionError(f"size is {size}; it must not be negative")

    def prepare(self, positions: Positions) -> Tensor:
        return positions.delta[:, None].abs() <= self.size

    def mask(self, context: AttentionContext[Tensor]) -> Tensor | None:
        return context.state
