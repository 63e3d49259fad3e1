"""Transformer-XL: Attentive Language Models beyond a Fixed-Length Context (Dai et al. 2019, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.absolute.tokens import even
from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import probability
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import register
from floater.encodings.relative.distances import Distances
from floater.encodings.relative.waves import Waves, frequencies
from floater.encodings.spec import StackSpec
from floater.encodings.terms import AttentionTerms
from floater.flow import sinusoid
from floater.positions import Positions


@dataclass(frozen=True)
class XLState:
    """State of a forward pass, shared by the blocks.

    Args:
        distances: the distances of whole positions; None for real ones.
        sinusoids: the sinusoids of these distances, (N, dim).
        waves: the waves of queries and keys at real positions; None for whole ones.
    """

    distances: Distances | None
    sinusoids: Tensor | None
    waves: tuple[Waves, Waves] | None


@register("transformer_xl")
class TransformerXL(PositionModel):
    """Products of queries and of a learned vector with sinusoids of the distance t - s, projected in each
    block.

    q_t k_s + q_t W_r R_{t-s} + u k_s + v W_r R_{t-s}, all over sqrt(head_dim). W_r (d x d, a slice for each
    head) belongs to a block; all blocks share u and v unless untied. The survey counts a d x d matrix for
    each head. R is as wide as the model and covers both directions: a causal stack masks the later keys, for
    which the released code's shift gives arbitrary values. Memory of earlier segments is
    `floater.transformer.memory.Memory`. Positions may be real.

    In the released code W_r, u and v start like all other weights, normal with one standard deviation, 0.02;
    so they do here where the Transformer's weights have one. Else W_r starts by Xavier's rule, as the other
    projections do. The authors' evaluations with long memories clamp distances (`clamp_len`), as does a
    reading whose `group` is that distance and a number above any.

    Args:
        untie: whether u and v differ from block to block, as in the authors' trainings on words in
            TensorFlow.
        dropout: dropout of the components of R, drawn once for all blocks; the authors take that of the
            embeddings.

    Raises:
        PositionError: if dim is odd or an option not valid; in `prepare`, with dropout in training, if
            positions are real.

    Example:
        >>> model = TransformerXL(StackSpec(dim=8, heads=2, layers=3, max_length=16))
        >>> q = torch.ones(1, 2, 5, 4)
        >>> model.bias(q, q, AttentionContext(model.prepare(Positions.arange(5)), 0)).shape
        torch.Size([1, 2, 5, 5])
    """

    card = Card(
        paper="Dai et al. 2019",
        link="https://arxiv.org/abs/1901.02860",
        stacks={"causal": "language models"},
        point="relative",
        models="Transformer-XL, XLNet",
        equation="(q_t k_s + q_t W_r R_{t-s} + u k_s + v W_r R_{t-s}) / sqrt(d_h)",
        parameters="2 * d + d * d * l",
        survey=SurveyRow(
            "MAM",
            recurring=True,
            unbound=True,
            parameters="2*d + d^2*l*h",
            differs={
                "parameters": "a block's W_r is d x d in all, each head projecting with d/h of its rows"
            },
        ),
    )

    def __init__(self, spec: StackSpec, *, untie: bool = False, dropout: float = 0.0) -> None:
        super().__init__(spec)
        even(spec)
        probability(dropout=dropout)
        self.dropout = dropout
        self.project = nn.ModuleList(nn.Linear(spec.dim, spec.dim, bias=False) for _ in range(spec.layers))
        shape = (spec.layers if untie else 1, spec.heads, spec.dim // spec.heads)
        self.u, self.v = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for vector in (self.u, self.v):
            nn.init.normal_(vector, std=self.spec.weight_std(0.02))
        for linear in self.project:
            assert isinstance(linear, nn.Linear)
            self.spec.init_linear(linear.weight)

    def prepare(self, positions: Positions) -> XLState:
        dim, device = self.spec.dim, positions.key.device
        if positions.query.is_floating_point() or positions.key.is_floating_point():
            if positions.group is not None:
                raise PositionError(
                    f"group (reading.group) is {positions.group}; 'transformer_xl' groups whole distances, "
                    "not those of real positions"
                )
            if self.training and self.dropout:
                raise PositionError(
                    f"dropout is {self.dropout}, which 'transformer_xl' has for whole distances only; "
                    "positions are real"
                )
            at = frequencies(dim, device=device)
            dtype = self.u.dtype
            return XLState(
                None, None, (Waves.of(positions.query, at, dtype), Waves.of(positions.key, at, dtype))
            )
        distances = Distances.of(positions, "transformer_xl")
        waves = sinusoid(-distances.values.double(), dim).to(self.u.dtype)
        return XLState(distances, F.dropout(waves, self.dropout, self.training), None)

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[XLState]) -> Tensor | None:
        state, layer = context.state, context.layer
        heads, dim = self.spec.heads, self.spec.dim
        linear = self.project[layer]
        assert isinstance(linear, nn.Linear)
        which = layer if len(self.u) > 1 else 0
        u, v = (vector[which][:, None] for vector in (self.u, self.v))
        if state.waves is not None:
            wide = (q + v) @ linear.weight.view(heads, dim // heads, dim)
            queries, keys = state.waves
            near = queries.toward(wide[..., ::2], wide[..., 1::2], keys)
        else:
            assert state.distances is not None
            near = state.distances.queries(q + v, self.rows(state, layer))
        return self.scale(q.shape[-1]) * (near + u @ k.transpose(-1, -2))

    def attention_terms(
        self, q: Tensor, k: Tensor, context: AttentionContext[XLState]
    ) -> AttentionTerms | None:
        state, layer = context.state, context.layer
        if state.distances is None or state.distances.index is not None:
            return None
        which = layer if len(self.u) > 1 else 0
        u, v = (vector[which][:, None] for vector in (self.u, self.v))
        return AttentionTerms(content=(q + u, k), distance_queries=q + v, queries=self.rows(state, layer))

    def rows(self, state: XLState, layer: int) -> Tensor:
        """Return the projected sinusoids of whole distances, (heads, N, head_dim)."""
        rows: Tensor = self.project[layer](state.sinusoids)
        return rows.view(rows.shape[0], self.spec.heads, -1).transpose(0, 1)
