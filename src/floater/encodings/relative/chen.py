"""A Simple and Effective Positional Encoding for Transformers (Chen et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.encodings.card import Card
from floater.encodings.model import Frame, PositionError, register
from floater.encodings.relative.bias import DistanceTable, PositionBias
from floater.encodings.relative.distances import whole
from floater.positions import Positions

_LINK = "https://arxiv.org/abs/2104.08698"


@register("chen_relative")
class ChenRelative(DistanceTable):
    """DIET-Rel: a learned scalar per distance is added to the logits of every head in every block.

    The survey (section 4.6) is the specification. The paper's segment term is not part of this. Bounded:
    distances stay below max_length.

    Args:
        frame: the stack of blocks it serves.
        share_heads: one table for all heads.
        share_layers: one table for all blocks.

    Raises:
        PositionError: in `prepare`, if positions are real or a distance is past the table.

    Example:
        >>> frame = Frame(dim=8, heads=2, layers=3, max_length=16)
        >>> ChenRelative(frame, share_layers=True).table.shape
        torch.Size([1, 2, 31])
    """

    card = Card(
        paper="Chen et al. 2021",
        link=_LINK,
        point="relative",
        equation="q_t k_s / sqrt(d_h) + r_{s-t}",
        parameters="(2 * t_max - 1) * h * l",
        exceptions={"real": "a table has nothing between whole distances"},
    )
    name = "chen_relative"

    def __init__(self, frame: Frame, *, share_heads: bool = False, share_layers: bool = False) -> None:
        super().__init__(frame, share_heads=share_heads, share_layers=share_layers)


@register("chen_absolute")
class ChenAbsolute(PositionBias):
    """DIET-Abs: products of learned position vectors are added to the logits of every head in every block.

    Each head of a block has a vector per position for queries and one for keys; their product is not scaled.
    The survey (section 4.6) is the specification. The paper's segment term is not part of this. Bounded.

    Args:
        frame: the stack of blocks it serves; max_length positions.
        rank: width of the position vectors; None means head_dim.
        share_heads: one pair of tables for all heads.
        share_layers: one pair of tables for all blocks.

    Raises:
        PositionError: if rank is not positive; in `prepare`, if positions are real or past the table.

    Example:
        >>> ChenAbsolute(Frame(dim=8, heads=2, layers=3, max_length=16), rank=3).query.shape
        torch.Size([3, 2, 16, 3])
    """

    card = Card(
        paper="Chen et al. 2021",
        link=_LINK,
        point="absolute",
        equation="q_t k_s / sqrt(d_h) + a_t b_s",
        parameters="2 * t_max * d * l",
        exceptions={"real": "a table has nothing between whole positions"},
    )

    def __init__(
        self,
        frame: Frame,
        *,
        rank: int | None = None,
        share_heads: bool = False,
        share_layers: bool = False,
    ) -> None:
        super().__init__(frame)
        rank = frame.dim // frame.heads if rank is None else rank
        if rank < 1:
            raise PositionError(f"rank is {rank}; it must be at least 1")
        layers, heads = 1 if share_layers else frame.layers, 1 if share_heads else frame.heads
        shape = (layers, heads, frame.max_length, rank)
        self.query, self.key = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    @property
    def bound(self) -> int:
        """Positions of the tables."""
        return self.frame.max_length

    def reset_parameters(self) -> None:
        for table in (self.query, self.key):
            nn.init.normal_(table, std=table.shape[-1] ** -0.25)  # products of order one

    def prepare(self, positions: Positions) -> Positions:
        whole(positions, "chen_absolute", self.frame.max_length)
        return positions

    def correlation(self, state: Positions, layer: int) -> Tensor:
        layer = layer if len(self.query) > 1 else 0
        query = self.query[layer][:, state.query].transpose(0, 1)
        return query @ self.key[layer][:, state.key].transpose(0, 1).transpose(-1, -2)
