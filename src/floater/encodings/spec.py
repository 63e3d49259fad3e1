"""The stack of blocks that a position model serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn

from floater.encodings.checks import one_of
from floater.encodings.errors import PositionError

Site = Literal["self", "decoder", "cross"]


@dataclass(frozen=True)
class StackSpec:
    """The stack of blocks that a position model serves.

    Args:
        dim: width of the model, d.
        heads: attention heads.
        layers: blocks, N.
        max_length: training length in tokens: the table size of bounded models, the span over which a flow
            starts with vectors of order one.
        site: "self" for an encoder or a language model, "decoder" for self-attention followed by
            cross-attention, "cross" for the keys and values that cross-attention reads from the source.
        vocabulary: number of token ids, for models with parameters for each; None if unknown.
        causal: whether queries of self-attention see their own and earlier keys only.
        horizon: end T of the times for encodings that read times, in tokens (random times in
            training); None when times are the positions.
        initializer_range: standard deviation of initial tables and projections of positions where the
            Transformer around them has one for all weights (BERT, GPT); None for d^-1/2 and Xavier's.

    Raises:
        PositionError: if a size is not positive, heads do not divide dim, or there is no such site.

    Example:
        >>> StackSpec(dim=512, heads=8, layers=6, max_length=256).site
        'self'
    """

    dim: int
    heads: int
    layers: int
    max_length: int
    site: Site = "self"
    vocabulary: int | None = None
    causal: bool = False
    horizon: int | None = None
    initializer_range: float | None = None

    def __post_init__(self) -> None:
        for name in ("dim", "heads", "layers", "max_length", "horizon"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise PositionError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.dim % self.heads:
            raise PositionError(f"dim {self.dim} is not a multiple of heads {self.heads}")
        one_of("site", self.site, get_args(Site))

    def init_table(self, weight: Tensor) -> None:
        """Initialise a table of position vectors (..., dim)."""
        own = self.initializer_range
        nn.init.normal_(weight, std=self.dim**-0.5 if own is None else own)

    def init_linear(self, weight: Tensor) -> None:
        """Initialise the weight (out, in) of a projection of positions."""
        if self.initializer_range is None:
            nn.init.xavier_uniform_(weight)
        else:
            nn.init.normal_(weight, std=self.initializer_range)
