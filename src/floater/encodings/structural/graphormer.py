"""Do Transformers Really Perform Bad for Graph Representation? (Ying et al. 2021, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.encodings.card import Card
from floater.encodings.checks import at_least_one
from floater.encodings.registry import name_of, register
from floater.encodings.relative.bias import PositionBias
from floater.encodings.spec import StackSpec
from floater.encodings.structural.base import WHOLE, Paths, Structured
from floater.positions import Positions


@register("graphormer")
class Graphormer(Structured, PositionBias):
    """Vectors of degrees at the input; scalars of distances and of the edges on a shortest path in attention.

    x_t + 2 vectors of the degree of t, then for each head q_t k_s / sqrt(d_h) + b_{d(t,s)} + c_ts with c_ts
    the mean over the edges e_1, e_2, ... of a shortest path of W_n w_{label(e_n)}: w a vector over the heads
    for each label, W_n a matrix for the n-th edge, the first `hops` ones. As in the released code, whose
    graphs have every edge in both directions, all parameters are shared by the blocks and start normal with
    standard deviation 0.02. The graph token is not included; a [CLS] token can replace it.

    Edges count in both directions, with one label. Of several shortest paths the one over the lowest next
    nodes counts. Subwords have the degree and the paths of their word.

    Args:
        labels: number of edge labels.
        hops: edges of a path that count, the first ones.
        reach: greatest distance with a scalar of its own; None means max_length.
        degrees: greatest degree with vectors of its own.

    Raises:
        PositionError: if an option is not valid, a label is unknown, or the positions have no structure.

    Example:
        >>> model = Graphormer(StackSpec(dim=8, heads=2, layers=1, max_length=16))
        >>> degree, bias = model.prepare(Positions.graph([[(0, 1), (1, 2)]], sizes=[4]))
        >>> degree.tolist(), bias.shape
        ([[1, 2, 1, 0]], torch.Size([1, 2, 4, 4]))
    """

    card = Card(
        paper="Ying et al. 2021",
        link="https://arxiv.org/abs/2106.05234",
        stacks={"encoder": "molecules"},
        point="both",
        models="Graphormer",
        equation="x_t + z_deg(t); q_t k_s / sqrt(d_h) + b_{d(t,s)} + mean_n W_n w_{label(e_n)} over the path",
        parameters="2 * (degrees + 1) * d + (t_max + 2 + labels) * h + hops * h * h",
        exceptions=WHOLE,
        pair_matrix="paths between nodes are a table of pairs",
        structure="graph",
    )
    needs = "graph"

    def __init__(
        self, spec: StackSpec, *, labels: int = 1, hops: int = 5, reach: int | None = None, degrees: int = 64
    ) -> None:
        super().__init__(spec)
        self.reach = spec.max_length if reach is None else reach
        at_least_one(labels=labels, hops=hops, reach=self.reach, degrees=degrees)
        self.labels = labels
        self.degree = nn.Parameter(torch.empty(2, degrees + 1, spec.dim))  # into a node and out of it
        self.distance = nn.Parameter(torch.empty(self.reach + 2, spec.heads))  # the last one for no path
        self.label = nn.Parameter(torch.empty(labels, spec.heads))
        self.hop = nn.Parameter(torch.empty(hops, spec.heads, spec.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def prepare(self, positions: Positions) -> tuple[Tensor, Tensor]:
        """Return the degrees of the tokens, (batch or 1, T), and the bias, (batch or 1, heads, T, T)."""
        structure = self.structure(positions)
        paths = Paths(structure, self.labels, name_of(self))
        length = paths.lengths.clone()
        length[0], length[-1] = 0, -1  # from a node to itself; no path
        hops = self.hop[: paths.rows.shape[1]]
        edges = paths.rows[:, : len(hops)].div(2, rounding_mode="floor").clamp(max=self.labels - 1)
        counted = (torch.arange(len(hops), device=length.device) < length[:, None])[..., None]
        transformed = (self.label[edges][..., None] * hops).sum(-2).masked_fill(~counted, 0.0)
        edge_bias = transformed.sum(1) / length.clamp(1, len(self.hop))[:, None].to(self.label.dtype)
        number = torch.where(length < 0, self.reach + 1, length.clamp(max=self.reach))
        table = self.distance[number] + edge_bias
        row = paths.sample_rows.gather(1, paths.pair.flatten(1)).view(paths.pair.shape)
        degree = structure.at(structure.neighbours.sum(-1)).clamp(max=self.degree.shape[1] - 1)
        return degree, table[row].movedim(-1, 1)

    def embed(self, x: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        return x + self.degree[:, state[0]].sum(0).to(x.dtype)

    def correlation(self, state: tuple[Tensor, Tensor], layer: int) -> Tensor:
        return state[1]
