"""Modeling Graph Structure via Relative Position for Text Generation from Knowledge Graphs.

Schmitt, Ribeiro, Dufter, Gurevych, Schuetze 2021, section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.encodings.card import Card, SurveyRow
from floater.encodings.errors import PositionError
from floater.encodings.registry import register
from floater.encodings.relative.bias import PositionBias
from floater.encodings.spec import StackSpec
from floater.encodings.structural.base import WHOLE, Structured
from floater.positions import Positions


@register("graformer")
class Graformer(Structured, PositionBias):
    """A learned scalar a head for the length and the direction of the shortest path between two nodes.

    Equation 31 of the survey: with the query t and the key s, r = d(t, s) where d(t, s) <= d(s, t), else
    -d(s, t), d along the directions of edges; infinity where there is no path either way. Distances beyond
    `reach` share the last scalar of their sign, as the paper clips them (the released code clips the number
    of the scalar, which loses the sign there, and its rows are d(s, t)). All blocks share the scalars, which
    are added to the scaled logits and start uniform in (-1, 1).

    With `subwords` the tokens of one word have r = their distance in tokens, on scalars of its own up to that
    distance; without it they have distance 0.

    Args:
        reach: D_max, the greatest distance with a scalar of its own; None means max_length.
        subwords: greatest distance between tokens of one word with a scalar of its own.

    Shapes:
        state: numbers of the scalars, (batch or 1, T, T): 0 for the node itself, 1 for no path, 2 d and
            2 d + 1 for the distances d and -d, then those of subwords in the same order.

    Raises:
        PositionError: if an option is not valid, or the positions have no structure.

    Example:
        >>> model = Graformer(StackSpec(dim=8, heads=2, layers=1, max_length=16))
        >>> bias = model.prepare(Positions.graph([[(0, 1), (1, 2)]], sizes=[4]))[0, 0]
        >>> bool(bias[0, 1] == bias[1, 2]), bool(bias[0, 1] == bias[1, 0])  # there and back differ
        (True, False)
    """

    card = Card(
        paper="Schmitt et al. 2021",
        link="https://aclanthology.org/2021.textgraphs-1.2",
        stacks={"encoder": "graphs to text"},
        point="relative",
        equation="q_t k_s + b_{r(t,s)}, r the signed length of the shortest path",
        parameters="2 * (t_max + 1) * h",
        survey=SurveyRow("MAM", recurring=True, parameters="2 * (D_max + 1) * h"),
        exceptions=WHOLE,
        pair_matrix="paths between nodes are a table of pairs",
        structure="graph",
    )
    needs = "graph"

    def __init__(self, spec: StackSpec, *, reach: int | None = None, subwords: int = 0) -> None:
        super().__init__(spec)
        self.reach = spec.max_length if reach is None else reach
        self.subwords = subwords
        if self.reach < 1 or subwords < 0:
            raise PositionError(f"reach {self.reach} must be at least 1, subwords {subwords} at least 0")
        self.scalars = nn.Embedding(2 * (self.reach + 1) + 2 * subwords, spec.heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.scalars.weight, -1, 1)

    def prepare(self, positions: Positions) -> Tensor:
        structure = self.structure(positions)
        there = structure.between(structure.distance)
        back = there.transpose(1, 2)
        backward = (back >= 0) & ((there < 0) | (back < there))
        length = torch.where(backward, back, there).clamp(max=self.reach)
        number = torch.where(length < 0, 1, 2 * length + backward)
        if self.subwords and structure.words is not None:
            token = torch.arange(number.shape[1], device=number.device)
            offset = (token - token[:, None]).clamp(-self.subwords, self.subwords)
            words = structure.words
            same = (words[:, :, None] == words[:, None, :]) & (offset != 0) & (words >= 0)[:, :, None]
            number = torch.where(same, 2 * (self.reach + offset.abs()) + (offset < 0), number)
        scalars: Tensor = self.scalars(number)
        return scalars.permute(0, 3, 1, 2).contiguous()  # as attention reads it, head by head
