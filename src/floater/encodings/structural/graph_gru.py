"""Graph Transformer for Graph-to-Sequence Learning (Cai, Lam 2020, section 3)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import at_least_one
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.registry import name_of, register
from floater.encodings.spec import StackSpec
from floater.encodings.structural.base import WHOLE, PairVectors, Paths, Structured, scores
from floater.positions import Positions


@register("graph_gru")
class GraphGRU(Structured):
    """A GRU over the labels on the shortest path of a pair gives one vector to its query, another to its key.

    Logits are scale (q_t + a_ts) (k_s + b_ts), equation 30 of the survey, [a_ts; b_ts] = W^r r_ts with r_ts
    the last states of both directions of a GRU over the labels from the query's node to the key's, projected.
    Values are unchanged. A reversed edge has a label of its own, as in the released code (the survey says
    that directions are omitted); the empty path has one, and, beyond the paper, so does a missing path. Of
    several shortest paths the one over the lowest nodes is read. The GRU runs once per forward pass over each
    distinct sequence, a step at a time for sequences with the same beginning.

    W^r is the released code's, a projection (dim, 2 dim) of its own in every block, after a linear map of the
    last states. `shared=True` is the survey's equation as it is printed: one W^r for all blocks, and
    (x_t + a_ts) W_q (x_s + b_ts) W_k with the block's own projections of queries and keys. The authors add a
    learned vector of a concept's depth to its embedding, too; `spr_absolute` adds the depth's sinusoid.

    As in the released code the vectors of labels start normal with a standard deviation of 0.02 (that of all
    weights, where the Transformer's have one), the GRU and the linear map as torch's do. That code has two
    layers of GRU, drops components of the labels' vectors out in training, reads a random one of several
    shortest paths there and the mean of all in evaluation, and has one label for paths of more than 8 edges.

    Args:
        labels: number of edge labels.
        shared: whether a and b go through the projections of queries and keys.

    Raises:
        PositionError: if an option is not valid, dim is odd, the positions have no structure, or a label is
            out of range.

    Example:
        >>> model = GraphGRU(StackSpec(dim=8, heads=2, layers=1, max_length=16))
        >>> model.prepare(Positions.graph([[(0, 1), (1, 2)]])).vectors.shape
        torch.Size([1, 5, 8])
    """

    card = Card(
        paper="Cai and Lam 2020",
        link="https://arxiv.org/abs/1911.07470",
        stacks={"encoder": "graphs to text, translation"},
        point="relative",
        equation="(q_t + a_{t,s}) (k_s + b_{t,s}), [a; b] = W^r GRU(labels from t to s)",
        parameters="(2 * l + 11 / 2) * d * d + 7 * d + (2 * labels + 2) * d",
        survey=SurveyRow(
            "MAM",
            recurring=True,
            unbound=True,
            parameters="7 * d^2 + 3 * d",
            differs={
                "unbound": "it serves any length, but the state of a GRU converges within 150 equal edges",
                "parameters": "two directions of width d / 2, with both bias sets of nn.GRU; a projection; "
                "W^r in every block; the labels' vectors",
            },
        ),
        exceptions=WHOLE,
        structure="graph",
    )
    needs = "graph"

    def __init__(self, spec: StackSpec, *, labels: int = 1, shared: bool = False) -> None:
        super().__init__(spec)
        at_least_one(labels=labels)
        if spec.dim % 2:
            raise PositionError(f"dim is {spec.dim}; a GRU of two directions needs an even one")
        dim = spec.dim
        self.labels, self.shared = labels, shared
        self.symbol = nn.Embedding(2 * labels + 2, dim)
        self.gru = nn.GRU(dim, dim // 2, batch_first=True, bidirectional=True)
        self.output = nn.Identity() if shared else nn.Linear(dim, dim)
        self.relation = nn.Parameter(torch.empty(1 if shared else spec.layers, dim, 2 * dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.symbol.weight, std=self.spec.weight_std(0.02))
        self.gru.reset_parameters()
        if isinstance(self.output, nn.Linear):
            self.output.reset_parameters()
        for weight in self.relation:
            self.spec.init_linear(weight)

    def prepare(self, positions: Positions) -> PairVectors:
        structure = self.structure(positions)
        paths = Paths(structure.on_cpu, self.labels, name_of(self))
        index = torch.arange(paths.rows.shape[1], device=paths.rows.device)
        backward = paths.rows.gather(1, (paths.lengths[:, None] - 1 - index).clamp(min=0))
        last = [
            self._last(rows, paths.lengths, suffix)
            for rows, suffix in ((paths.rows, ""), (backward, "_reverse"))
        ]
        return PairVectors(
            self.output(torch.cat(last, dim=-1))[paths.sample_rows], paths.pair.to(structure.edges.device)
        )

    def _last(self, rows: Tensor, lengths: Tensor, suffix: str) -> Tensor:
        """Return the GRU's last states (R, dim / 2), with a step for each distinct beginning of a sequence.

        Paths of a deep graph share beginnings: on a chain of N nodes there are 2 N beginnings in N^2 steps.

        Args:
            rows: (R, D) symbols.
            lengths: (R,), at least 1.
            suffix: suffix of the direction's weights.
        """
        weight_ih, weight_hh, bias_ih, bias_hh = (
            getattr(self.gru, f"{name}_l0{suffix}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        table = F.linear(self.symbol.weight, weight_ih, bias_ih)
        state = table.new_zeros(1, self.gru.hidden_size)
        beginning = torch.zeros_like(lengths)  # of each sequence, which state is its own
        ended, last = [], []
        for step in range(rows.shape[1]):
            going = (lengths > step).nonzero()[:, 0]
            key = beginning[going] * len(table) + rows[going, step]
            distinct, beginning[going] = torch.unique(key, return_inverse=True)
            before = state[distinct // len(table)]
            x = table[distinct % len(table)].chunk(3, -1)
            h = F.linear(before, weight_hh, bias_hh).chunk(3, -1)
            reset, update = ((x[i] + h[i]).sigmoid() for i in range(2))
            state = (1 - update) * torch.tanh(x[2] + reset * h[2]) + update * before
            done = (lengths == step + 1).nonzero()[:, 0]
            ended.append(done)
            last.append(state[beginning[done]])
        return torch.cat(last)[torch.cat(ended).argsort()]

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[PairVectors]) -> Tensor:
        if self.shared:
            vectors = context.state.vectors @ self.relation[0]
            a, b = (
                self._projected(context.projections[name], part).to(q.dtype)
                for name, part in zip(("query", "key"), vectors.chunk(2, dim=-1), strict=True)
            )
        else:
            tables = context.state.heads(self.relation[context.layer], 2 * self.spec.heads).to(q.dtype)
            a, b = tables.chunk(2, dim=1)
        pair = context.state.pair
        # k_s meets the vectors of the pairs in its column
        dots = scores(q, b, pair) + scores(k, a, pair.transpose(1, 2)).transpose(-1, -2)
        alone = (a * b).sum(-1).gather(-1, pair.flatten(1)[:, None].expand(-1, a.shape[1], -1))
        return (dots + alone.view(*a.shape[:2], *pair.shape[1:])) * self.scale(q.shape[-1])

    def _projected(self, linear: Callable[[Tensor], Tensor], vectors: Tensor) -> Tensor:
        """Map (batch, U, dim) by a projection without its bias, which the tokens have."""
        table = linear(vectors) - linear(torch.zeros_like(vectors[:1, :1]))
        return table.view(*table.shape[:-1], self.spec.heads, -1).transpose(1, 2)
