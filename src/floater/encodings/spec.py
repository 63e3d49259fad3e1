"""The stack of blocks that a position model is built for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn

from floater.encodings.checks import is_number, is_whole, one_of
from floater.encodings.errors import PositionError

Site = Literal["self", "decoder", "cross"]


@dataclass(frozen=True)
class StackSpec:
    """The stack of blocks that a position model is built for.

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
        PositionError: if a size is not a positive whole number, heads do not divide dim, or another value is
            not valid.

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
        for name in ("dim", "heads", "layers", "max_length", "horizon", "vocabulary"):
            value = getattr(self, name)
            if value is None and name in ("horizon", "vocabulary"):
                continue
            if not is_whole(value):
                raise PositionError(f"{name} is {value!r}; it must be a whole number")
            if value < 1:
                raise PositionError(f"{name} is {value}; it must be at least 1")
        std = self.initializer_range
        if std is not None and not (is_number(std) and std >= 0):
            raise PositionError(f"initializer_range is {std!r}; it must be a finite number, at least 0")
        if not isinstance(self.causal, bool):
            raise PositionError(f"causal is {self.causal!r}; it must be true or false")
        if self.dim % self.heads:
            raise PositionError(f"dim {self.dim} is not a multiple of heads {self.heads}")
        one_of("site", self.site, get_args(Site))

    def weight_std(self, default: float) -> float:
        """Return the standard deviation with which all weights start; `default` where there is none."""
        return default if self.initializer_range is None else self.initializer_range

    def init_table(self, weight: Tensor) -> None:
        """Initialise a table of position vectors (..., dim)."""
        nn.init.normal_(weight, std=self.weight_std(self.dim**-0.5))

    def init_linear(self, weight: Tensor) -> None:
        """Initialise the weight (out, in) of a projection of positions."""
        if self.initializer_range is None:
            nn.init.xavier_uniform_(weight)
        else:
            nn.init.normal_(weight, std=self.initializer_range)
