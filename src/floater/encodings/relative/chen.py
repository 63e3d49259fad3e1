"""A Simple and Effective Positional Encoding for Transformers (Chen et al. 2021)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from floater.encodings.absolute.tokens import whole_numbers
from floater.encodings.card import Card
from floater.encodings.checks import at_least_one, at_least_zero
from floater.encodings.errors import PositionError
from floater.encodings.registry import register
from floater.encodings.relative.bias import DistanceBias, DistanceTable, PairBias, PositionBias, ProductBias
from floater.encodings.spec import StackSpec
from floater.positions import Positions

_LINK = "https://arxiv.org/abs/2104.08698"


def segments_of(positions: Positions, count: int, name: str) -> tuple[Tensor, Tensor] | None:
    """Return the segments of queries (batch or 1, T) and keys (batch or 1, S); None for a model without them.

    Raises:
        PositionError: if the positions have no segments, or one that the model does not have.

    Example:
        >>> segments_of(Positions.arange(2), 2, "chen_relative")
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: no segment in the positions; 'chen_relative' has segments=2
    """
    if not count:
        return None
    ids = positions.segment
    if ids is None:
        raise PositionError(f"no segment in the positions; '{name}' has segments={count}")
    low, high = (int(x) for x in ids.aminmax()) if ids.numel() else (0, 0)
    if low < 0 or high >= count:
        raise PositionError(f"segments are 0 to {count - 1}; got {low} to {high}")
    return ids[:, ids.shape[1] - positions.query.shape[1] :], ids


class SegmentTable(nn.Module):
    """A learned scalar for each pair of segments, query first: E_S(S(t), S(s)).

    Args:
        layers: number of tables.
        heads: number of scalars of a pair; 1 where heads share them.
        count: number of segments.
    """

    def __init__(self, layers: int, heads: int, count: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(layers, heads, count, count))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=0.02)

    def forward(self, segments: tuple[Tensor, Tensor], layer: int) -> Tensor:
        """Return the bias, (batch or 1, heads, T, S)."""
        query, key = segments
        table = self.table[layer if len(self.table) > 1 else 0]
        return table[:, query[:, :, None], key[:, None, :]].transpose(0, 1)


def segment_table(spec: StackSpec, share_heads: bool, share_layers: bool, count: int) -> SegmentTable | None:
    """Return the table of segments for a model's options; None without segments.

    Raises:
        PositionError: if the number of segments is negative.
    """
    at_least_zero(segments=count)
    layers, heads = 1 if share_layers else spec.layers, 1 if share_heads else spec.heads
    return SegmentTable(layers, heads, count) if count else None


@register("chen_relative")
class ChenRelative(DistanceTable):
    """DIET-Rel: a learned scalar per distance is added to the logits of every head in every block.

    The survey (section 4.6) is the specification. With `segments` the paper's segment term is added, a scalar
    for the pair of segments (`Positions.segment`) of query and key. Bounded: distances stay below max_length.

    Args:
        share_heads: one table for all heads.
        share_layers: one table for all blocks.
        segments: number of segments that an input may have; 0 for no term of segments.

    Raises:
        PositionError: in `prepare`, if positions are real or a distance is past the table.

    Example:
        >>> spec = StackSpec(dim=8, heads=2, layers=3, max_length=16)
        >>> ChenRelative(spec, share_layers=True).table.shape
        torch.Size([1, 2, 31])
    """

    card = Card(
        paper="Chen et al. 2021",
        link=_LINK,
        stacks={"encoder": "BERT, translation", "decoder": "translation"},
        point="relative",
        equation="q_t k_s / sqrt(d_h) + r_{s-t}",
        parameters="(2 * t_max - 1) * h * l",
        exceptions={
            "real": "a table has nothing between whole distances",
            "rows": "rows of later keys are never read in a causal stack",
        },
    )
    name = "chen_relative"

    def __init__(
        self, spec: StackSpec, *, share_heads: bool = False, share_layers: bool = False, segments: int = 0
    ) -> None:
        super().__init__(spec, share_heads=share_heads, share_layers=share_layers)
        self.segments = segment_table(spec, share_heads, share_layers, segments)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        segments: SegmentTable | None = getattr(self, "segments", None)
        if segments is not None:
            segments.reset_parameters()

    def prepare(self, positions: Positions) -> Any:
        count = 0 if self.segments is None else self.segments.table.shape[-1]
        return super().prepare(positions), segments_of(positions, count, self.name)

    def added(self, state: Any, layer: int) -> DistanceBias | Tensor:
        distances, segments = state
        bias = super().added(distances, layer)
        assert isinstance(bias, DistanceBias)
        if self.segments is None:
            return bias
        more: Tensor = self.segments(segments, layer)
        return bias.matrix + more


@register("chen_absolute")
class ChenAbsolute(PositionBias):
    """DIET-Abs: products of learned position vectors are added to the logits of every head in every block.

    Each head of a block has a vector per position for queries and one for keys; their product is not scaled.
    The survey (section 4.6) is the specification. With `segments` the paper's segment term joins it, a scalar
    for the pair of segments (`Positions.segment`) that query and key belong to. Bounded.

    Args:
        spec: the stack of blocks; max_length positions.
        rank: width of the position vectors; None means head_dim.
        share_heads: one pair of tables for all heads.
        share_layers: one pair of tables for all blocks.
        segments: number of segments that an input may have; 0 for no term of segments.

    Raises:
        PositionError: if rank is not positive; in `prepare`, if positions are real or past the table.

    Example:
        >>> ChenAbsolute(StackSpec(dim=8, heads=2, layers=3, max_length=16), rank=3).query.shape
        torch.Size([3, 2, 16, 3])
    """

    card = Card(
        paper="Chen et al. 2021",
        link=_LINK,
        stacks={"encoder": "BERT, translation", "decoder": "translation"},
        point="absolute",
        equation="q_t k_s / sqrt(d_h) + a_t b_s",
        parameters="2 * t_max * d * l",
        exceptions={"real": "a table has nothing between whole positions"},
    )
    bounded = True

    def __init__(
        self,
        spec: StackSpec,
        *,
        rank: int | None = None,
        share_heads: bool = False,
        share_layers: bool = False,
        segments: int = 0,
    ) -> None:
        super().__init__(spec)
        rank = spec.dim // spec.heads if rank is None else rank
        at_least_one(rank=rank)
        layers, heads = 1 if share_layers else spec.layers, 1 if share_heads else spec.heads
        shape = (layers, heads, spec.max_length, rank)
        self.query, self.key = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.segments = segment_table(spec, share_heads, share_layers, segments)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in (self.query, self.key):
            nn.init.normal_(table, std=table.shape[-1] ** -0.25)  # products of order one
        if self.segments is not None:
            self.segments.reset_parameters()

    def prepare(self, positions: Positions) -> tuple[Positions, tuple[Tensor, Tensor] | None]:
        whole_numbers(positions, "chen_absolute", self.spec.max_length)
        count = 0 if self.segments is None else self.segments.table.shape[-1]
        return positions, segments_of(positions, count, "chen_absolute")

    def added(self, state: Any, layer: int) -> PairBias | Tensor:
        (positions, segments), at = state, layer if len(self.query) > 1 else 0
        query = self.query[at][:, positions.query].transpose(0, 1)
        bias = ProductBias(query, self.key[at][:, positions.key].transpose(0, 1))
        if self.segments is None:
            return bias
        more: Tensor = self.segments(segments, layer)
        return bias.matrix + more
