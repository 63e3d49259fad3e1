"""Graph-Bert: Only Attention is Needed for Learning Graph Representations (Zhang et al. 2020, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from floater.encodings.absolute.added import AddedVectors
from floater.encodings.absolute.tokens import even
from floater.encodings.card import Card, SurveyRow
from floater.encodings.errors import PositionError
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.encodings.structural.base import WHOLE, Structured
from floater.flow import sinusoid
from floater.positions import Positions
from floater.structures.graph_features import distances, intimacy, wl_colours


@register("graph_bert")
class GraphBert(Structured, AddedVectors):
    """The sum of the sinusoids of three numbers of a node: its colour, its rank and its distance.

    - the colour of the Weisfeiler-Lehman refinement after `rounds`, from 0;
    - the rank among the nodes sorted by intimacy with the first node, the target, which has rank 0;
      intimacy is personalised PageRank with `restart`, ties go by index;
    - the length of the shortest path from the target; without a path, the number of nodes.

    Edges count in both directions. The paper and the survey have sinusoids, the released code three learned
    tables of 100 rows, 99 for no path, and colours in the order of their hashes; here they are ordered by the
    colours of neighbours, so that isomorphic graphs get the same. It makes two refinements and keeps the
    first: rounds=1. Its intimacy is computed from D^-1/2 A D^-1/2 instead of D^-1 A, which divides it by the
    square root of a node's degree. Subwords have the position of their word.

    Args:
        rounds: refinements of the colours.
        restart: probability of a restart at the target, between 0 and 1.

    Shapes:
        state: (batch or 1, T, dim).

    Raises:
        PositionError: if dim is odd, an option is not valid, or the positions have no structure.

    Example:
        >>> model = GraphBert(StackSpec(dim=2, heads=1, layers=1, max_length=16))
        >>> star = Positions.graph([[(0, 1), (0, 2)]], directed=False)
        >>> model.numbers(star)[0].tolist()  # colour, rank, distance
        [[1, 0, 0], [0, 1, 1], [0, 2, 1]]
    """

    card = Card(
        paper="Zhang et al. 2020",
        link="https://arxiv.org/abs/2001.05140",
        stacks={"encoder": "nodes of graphs"},
        point="both",
        equation="x_t + p_{WL(t)} + p_{rank(t)} + p_{d(0,t)}, p sinusoidal",
        survey=SurveyRow("APE", learnable=False, unbound=True, parameters="0"),
        exceptions=WHOLE,
        structure="graph",
    )
    needs = "graph"

    def __init__(self, spec: StackSpec, *, rounds: int = 2, restart: float = 0.15) -> None:
        super().__init__(spec)
        even(spec)
        if rounds < 0 or not 0 < restart < 1:
            raise PositionError(f"rounds {rounds} must be at least 0, restart {restart} between 0 and 1")
        self.rounds, self.restart = rounds, restart

    def numbers(self, positions: Positions) -> Tensor:
        """Return the colour, rank and distance of every token, (batch or 1, T, 3)."""
        device, structure = positions.key.device, self.structure(positions).on_cpu
        neighbours, valid = structure.neighbours, structure.valid
        if not valid.shape[1]:
            return structure.at(neighbours.new_zeros(*valid.shape, 3, dtype=torch.long)).to(device)
        # values that differ by rounding only are equal
        near = intimacy(neighbours, self.restart, starts=1)[:, 0].round(decimals=12)
        near[:, 0] = torch.inf
        rank = near.masked_fill(~valid, -1).argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
        steps = distances(neighbours, starts=1)[:, 0]
        steps = torch.where(steps < 0, valid.sum(-1, keepdim=True), steps)
        numbers = torch.stack([wl_colours(neighbours, valid, self.rounds), rank, steps], dim=-1)
        return structure.at(numbers * valid[..., None]).to(device)

    def prepare(self, positions: Positions) -> Tensor:
        return sinusoid(self.numbers(positions), self.spec.dim, dtype=self.dtype).sum(-2)
