"""DeBERTa: Decoding-enhanced BERT with Disentangled Attention (He et al. 2021, section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.absolute.tokens import whole_numbers
from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import at_least_one, one_of, probability
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import QKV, PositionModel
from floater.encodings.registry import register
from floater.encodings.relative.distances import Distances
from floater.encodings.spec import StackSpec
from floater.encodings.terms import AttentionTerms
from floater.positions import Positions


def log_distance(distance: Tensor, span: int, max_distance: int) -> Tensor:
    """Return distances up to span / 2 unchanged, larger ones on a logarithmic scale that ends at span - 1.

    Args:
        distance: whole numbers (...).
        span: distances stay below it after the change.
        max_distance: the distance that becomes span - 1 is max_distance - 1.

    Example:
        >>> log_distance(torch.tensor([-511, -100, 3, 200]), 256, 512).tolist()
        [-255, -100, 3, 169]
    """
    middle = span // 2
    far = distance.abs().clamp(min=middle).float() / middle
    steps = torch.ceil(far.log() / math.log((max_distance - 1) / middle) * (middle - 1)).long()
    return torch.where(distance.abs() <= middle, distance, distance.sign() * (middle + steps))


@dataclass(frozen=True)
class DebertaState:
    """State of a forward pass, shared by the blocks.

    Args:
        distances: between queries and keys.
        rows: rows (layers or 1, N, dim) of P by projection ("key" or "query"), and the index of each distance
            into them, None where they are in the order of the distances.
        absolute: vectors of the absolute positions of queries.
    """

    distances: Distances
    rows: dict[str, tuple[Tensor, Tensor | None]]
    absolute: Tensor | None


@register("deberta")
class Deberta(PositionModel):
    """Content-to-position and position-to-content logits, and absolute positions in the last block's queries.

    Equation 4: q_t k_s + q_t (P W_K)_{delta(t, s)} + k_s (P W_Q)_{delta(s, t)}, each over sqrt(head_dim times
    the number of terms). delta(t, s) is t - s + k, kept in 0 ... 2k - 1 (equation 3). P (2k x d) is shared by
    all blocks, each of which has its own projections; the survey's count excludes them. The released code, in
    all versions, uses delta(t, s) in the last term too: direction="released".

    The absolute decoder (section 3.2) adds a learned vector of the position to the input of the last block's
    queries, but not to that of keys, values and the residual. It is bounded: positions past its table are an
    error. Distances are clipped, as in the paper.

    The projections of P have biases in the released code, version 1 that of queries, later ones both:
    bias=True. That of keys adds the same number to all logits of a query, so only that of queries is
    implemented.

    The authors' masked language model runs the last block twice.

    Later versions use logarithmic buckets and a layer norm on P, and project P by the block's own
    projections, biases included (share_att_key): share=True.

    Args:
        span: k, half the rows of P; None means max_length.
        terms: "both", "content_to_position" or "position_to_content".
        direction: "paper" or "released"; requires terms with position_to_content.
        buckets: "clip", or "log" (versions 2 and 3).
        max_distance: with "log" only, end of the buckets, above span / 2 + 1; None means 2 span.
        norm: whether P goes through a layer norm (versions 2 and 3).
        share: project P with the block's own projections of queries and keys (versions 2 and 3).
        absolute: whether the last block's queries read absolute positions.
        bias: whether P's projection of queries has a bias, as in the released code; requires share=False and
            terms with position_to_content.
        dropout: dropout of the components of P, drawn anew for each block; the authors take that of hidden
            states.

    Raises:
        PositionError: if an option is not valid; in `prepare`, if positions are real or past the table.

    Example:
        >>> model = Deberta(StackSpec(dim=8, heads=2, layers=3, max_length=16))
        >>> round(model.scale(3), 4)
        0.3333
    """

    card = Card(
        paper="He et al. 2021",
        link="https://arxiv.org/abs/2006.03654",
        stacks={"encoder": "DeBERTa", "causal": "language models"},
        point="both",
        models="DeBERTa, DeBERTa-v3",
        equation="(q_t k_s + q_t (P W_K)_{delta(t,s)} + k_s (P W_Q)_{delta(s,t)}) / sqrt(3 d_h); "
        "last block: q_t = W_q (x_t + a_t)",
        parameters="3 * t_max * d + 2 * d * d * l",
        survey=SurveyRow(
            "both",
            recurring=True,
            parameters="3*t_max*d",
            differs={"parameters": "with the projections of P in every block"},
        ),
        exceptions={"real": "a table has nothing between whole positions or distances"},
    )

    def __init__(
        self,
        spec: StackSpec,
        *,
        span: int | None = None,
        terms: str = "both",
        direction: str = "paper",
        buckets: str = "clip",
        max_distance: int | None = None,
        norm: bool = False,
        share: bool = False,
        absolute: bool = True,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(spec)
        one_of("terms", terms, ("both", "content_to_position", "position_to_content"))
        one_of("direction", direction, ("paper", "released"))
        one_of("buckets", buckets, ("clip", "log"))
        at_least_one(max_distance=max_distance)
        probability(dropout=dropout)
        if max_distance is not None and buckets == "clip":
            raise PositionError(
                f"max_distance is {max_distance}, but with buckets='clip' distances end at span"
            )
        self.span = spec.max_length if span is None else span
        if self.span < (4 if buckets == "log" else 1):
            raise PositionError(
                f"span is {self.span}; buckets='{buckets}' needs at least {4 if buckets == 'log' else 1}"
            )
        self.max_distance = 2 * self.span if max_distance is None else max_distance
        if buckets == "log" and self.max_distance <= self.span // 2 + 1:
            raise PositionError(
                f"max_distance is {self.max_distance}; with a span of {self.span} "
                f"it must be above {self.span // 2 + 1}"
            )
        self.direction, self.buckets, self.share, self.dropout = direction, buckets, share, dropout
        self.c2p, self.p2c = terms != "position_to_content", terms != "content_to_position"
        self.terms = 2 if terms == "both" else 1
        dim, layers = spec.dim, spec.layers

        if share and bias:
            raise PositionError(
                "bias is True, but with share=True P goes through the block's own projections"
            )
        if not self.p2c and (bias or direction != "paper"):
            option = f"bias is {bias}" if bias else f"direction is {direction!r}"
            raise PositionError(f"{option}, but with terms={terms!r} P is not projected to queries")

        def projections(wanted: bool, bias: bool = False) -> nn.ModuleList:
            used = layers if wanted and not share else 0
            return nn.ModuleList(nn.Linear(dim, dim, bias=bias) for _ in range(used))

        self.table = nn.Embedding(2 * self.span, dim)
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()
        self.key, self.query = projections(self.c2p), projections(self.p2c, bias)
        self.absolute = nn.Embedding(spec.max_length, dim) if absolute else None
        self.reset_parameters()

    @property
    def reach(self) -> int:
        """Return the distance from which on all distances use the last rows of the table."""
        if self.buckets == "clip":
            return self.span
        middle = self.span // 2
        ratio = (self.max_distance - 1) / middle
        return math.ceil(middle * math.pow(ratio, (self.span - middle) / (middle - 1)))

    @property
    def max_positions(self) -> int | None:
        """Return the number of positions of the absolute decoder, if there is one."""
        return None if self.absolute is None else self.spec.max_length

    def reset_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                self.spec.init_table(module.weight)
            elif isinstance(module, nn.Linear):
                self.spec.init_linear(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()

    def scale(self, head_dim: int) -> float:
        return float((head_dim * (1 + self.terms)) ** -0.5)

    def prepare(self, positions: Positions) -> DebertaState:
        absolute = None
        if self.absolute is not None:
            whole_numbers(positions, "deberta", self.spec.max_length)
            absolute = self.absolute(positions.query)
        distances = Distances.of(positions, "deberta", reach=self.reach)
        values = distances.values
        if self.buckets == "log":
            values = log_distance(values, self.span, self.max_distance)
        table = self.norm(self.table.weight)[None]
        if self.training and self.dropout:  # here, as a kernel may read the rows of a block more than once
            table = F.dropout(table.expand(self.spec.layers, -1, -1), self.dropout)
        rows: dict[str, tuple[Tensor, Tensor | None]] = {}
        for name, wanted in (("key", self.c2p), ("query", self.p2c)):
            if wanted:
                ahead = name == "key" or self.direction == "released"
                index = ((-values if ahead else values) + self.span).clamp(0, 2 * self.span - 1)
                few = 2 * self.span < len(index)  # then projecting the table is less work
                rows[name] = (table, index) if few else (table[:, index], None)
        return DebertaState(distances, rows, absolute)

    def inputs(self, context: AttentionContext[DebertaState]) -> QKV:
        x, absolute = context.x, context.state.absolute
        if absolute is None or context.layer != self.spec.layers - 1:
            return x, x, x
        return x + absolute.to(x.dtype), x, x

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[DebertaState]) -> Tensor | None:
        (keys, queries), distances = self.tables(context), context.state.distances
        parts = [] if keys is None else [distances.queries(q, keys)]
        if queries is not None:
            parts.append(distances.keys(k, queries))
        return self.scale(q.shape[-1]) * (parts[0] if len(parts) == 1 else parts[0] + parts[1])

    def attention_terms(
        self, q: Tensor, k: Tensor, context: AttentionContext[DebertaState]
    ) -> AttentionTerms | None:
        if context.state.distances.index is not None:
            return None
        keys, queries = self.tables(context)
        return AttentionTerms(queries=keys, keys=queries)

    def tables(self, context: AttentionContext[DebertaState]) -> tuple[Tensor | None, Tensor | None]:
        """Return the projected vectors of each distance for queries and keys, (heads, N, head_dim)."""

        def projected(name: str) -> Tensor | None:
            if name not in context.state.rows:
                return None
            tables, index = context.state.rows[name]
            table = tables[context.layer if len(tables) > 1 else 0]
            linears = self.key if name == "key" else self.query
            rows = context.projections[name](table) if self.share else linears[context.layer](table)
            rows = rows if index is None else rows[index]
            return rows.view(rows.shape[0], self.spec.heads, -1).transpose(0, 1)

        return projected("key"), projected("query")
