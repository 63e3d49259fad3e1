"""Increasing Learning Efficiency of Self-Attention Networks through Direct Position Interactions, Learnable
Temperature, and Convoluted Attention (Dufter, Schmitt, Schuetze 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from floater.encodings.absolute.tokens import whole_numbers
from floater.encodings.card import Card
from floater.encodings.registry import register
from floater.encodings.relative.bias import PositionBias
from floater.encodings.relative.distances import pairs
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("dufter_absolute")
class DufterAbsolute(PositionBias):
    """A learned number for each pair of positions, added to the logits.

    Dufter et al. 2022, section 3.2 (the middle of figure 2) and section 4.1.2, are the specification: biases
    instead of position vectors. They leave sharing open, and the released program has one head; here every
    head of every block has its own. Biases start as there, with Glorot's variance for a matrix of that size.

    Shapes: table (layers, heads, max_length, max_length), query first.

    Bounded: a position past max_length is an error.

    Example:
        >>> from floater.encodings import AttentionContext
        >>> model = DufterAbsolute(StackSpec(dim=4, heads=2, layers=1, max_length=3))
        >>> q = torch.zeros(1, 2, 3, 2)
        >>> model.bias(q, q, AttentionContext(model.prepare(Positions.arange(3)), 0)).shape
        torch.Size([1, 2, 3, 3])
    """

    card = Card(
        paper="Dufter et al. 2020",
        link="https://doi.org/10.18653/v1/2020.coling-main.324",
        stacks={"encoder": "part-of-speech tagging"},
        point="absolute",
        equation="A_{ts} = q_t . k_s / sqrt(d_h) + b_{ts}",
        parameters="l * h * t_max * t_max",
        exceptions={
            "real": "a table has nothing between whole positions",
            "rows": "rows of later keys are never read in a causal stack",
        },
        pair_matrix="every entry is a parameter, whose gradient is as large",
    )
    name = "dufter_absolute"
    bounded = True
    half_read: ClassVar[Mapping[str, int]] = {"table": -1}

    def __init__(self, spec: StackSpec) -> None:
        super().__init__(spec)
        self.table = nn.Parameter(torch.empty(spec.layers, spec.heads, spec.max_length, spec.max_length))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.spec.max_length**-0.5)

    def prepare(self, positions: Positions) -> Positions:
        whole_numbers(positions, self.name, self.spec.max_length)
        return positions

    def correlation(self, state: Positions, layer: int) -> Tensor:
        return pairs(self.table[layer], state)
