"""Reformer: The Efficient Transformer (Kitaev, Kaiser, Levskaya 2020): axial position vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.encodings.absolute.added import AddedVectors
from floater.encodings.absolute.tokens import whole_numbers
from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import at_least_zero, one_of
from floater.encodings.errors import PositionError
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.positions import Positions

_OFFSETS = "places"
"""Name of the table of offsets in saved models."""


@register("axial")
class Axial(AddedVectors):
    """A vector for the segment of a token, concatenated with one for its offset in the segment.

    The paper does not describe it; Dufter et al. 2022, equation 5, do, and so do the released programs, which
    differ in the order: the survey puts the place t mod t1 first, the programs the segment t // t1. Both are
    offered. The programs' dropout of whole axes is not implemented.

    The vectors start standard normal, as those of tokens, too, did in the program when the paper appeared.
    Where all weights of the Transformer start with one standard deviation (BERT, GPT), they start with that.

    Shapes: segments (ceil(max_length / segment), first) and offsets (segment, dim - first) with
    order="released"; with order="survey" the offsets have `first` components.

    Bounded: a position past max_length is an error.

    Args:
        segment: tokens in a segment, the survey's t1; at least 1.
        first: components of the first part, the survey's d1, between 1 and dim - 1; None means half of dim.
        order: "released" or "survey".
        std: standard deviation of the initial vectors, at least 0; None means that of tokens.

    Raises:
        PositionError: if an option is not valid.

    Example:
        >>> model = Axial(StackSpec(dim=4, heads=1, layers=1, max_length=6), segment=3)
        >>> model.segments.shape, model.offsets.shape
        (torch.Size([2, 2]), torch.Size([3, 2]))
    """

    card = Card(
        paper="Kitaev et al. 2020",
        link="https://arxiv.org/abs/2001.04451",
        stacks={"causal": "language models, images"},
        point="absolute",
        models="Reformer",
        equation="x_t + [P1_{t // t1} ; P2_{t mod t1}]",
        parameters="d // 2 * -(-t_max // segment) + (d - d // 2) * segment",
        survey=SurveyRow("APE", parameters="(d-d1)*t_max/t1 + d1*t1"),
        exceptions={"real": "a table has nothing between whole positions"},
    )
    bounded = True

    def __init__(
        self,
        spec: StackSpec,
        *,
        segment: int = 32,
        first: int | None = None,
        order: str = "released",
        std: float | None = None,
    ) -> None:
        super().__init__(spec)
        one_of("order", order, ("released", "survey"))
        at_least_zero(std=std)
        first = spec.dim // 2 if first is None else first
        if segment < 1 or not 0 < first < spec.dim:
            raise PositionError(
                f"segment is {segment} and first is {first}; they must be at least 1, and first below dim "
                f"{spec.dim}"
            )
        self.segment, self.order = segment, order
        self.std = spec.weight_std(1.0) if std is None else std
        segment_dim, offset_dim = (first, spec.dim - first)[:: 1 if order == "released" else -1]
        self.segments = nn.Parameter(torch.empty(-(-spec.max_length // segment), segment_dim))
        self.register_parameter(_OFFSETS, nn.Parameter(torch.empty(segment, offset_dim)))
        self.reset_parameters()

    @property
    def offsets(self) -> Tensor:
        """Return the table of offsets, which saved models call `places`."""
        table: Tensor = getattr(self, _OFFSETS)  # a parametrization replaces the parameter
        return table

    def reset_parameters(self) -> None:
        for table in (self.segments, self.offsets):
            nn.init.normal_(table, std=self.std)

    def prepare(self, positions: Positions) -> Tensor:
        query = whole_numbers(positions, "axial", self.spec.max_length)
        parts = self.segments[query // self.segment], self.offsets[query % self.segment]
        return torch.cat(parts[:: 1 if self.order == "released" else -1], dim=-1)
