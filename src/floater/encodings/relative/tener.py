"""TENER: Adapting Transformer Encoder for Named Entity Recognition (Yan et al. 2019, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import one_of
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import QKV, PositionModel, Stage
from floater.encodings.registry import register
from floater.encodings.relative.waves import Waves, frequencies
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@dataclass(frozen=True)
class TenerState:
    """Waves at queries and keys."""

    queries: Waves
    keys: Waves


@register("tener")
class Tener(PositionModel):
    """Unprojected sinusoids of the signed distance, as wide as a head.

    "paper" (the survey's equations 22 and 23): q_t k_s + q_t R_{t-s} + u k_s + v R_{t-s}, no 1/sqrt(d),
    and the identity for W_k: a head's keys are its slice of the block's input. The block's own key projection
    then runs unused, with zero gradients.

    "released" differs from the paper: W_k is learned, the distance is taken as s - t, k_s R_{t-s} is added,
    and frequency i is 10000^(-i / (head_dim / 2 - 1)).

    u and v belong to a head of a block. Positions may be real.

    Args:
        spec: the stack of blocks; head_dim must be even, and above 2 for "released".
        form: "paper" or "released".

    Raises:
        PositionError: if head_dim or form is not valid.

    Example:
        >>> model = Tener(StackSpec(dim=8, heads=2, layers=3, max_length=16))
        >>> model.scale(4), model.u.shape
        (1.0, torch.Size([3, 2, 4]))
    """

    card = Card(
        paper="Yan et al. 2019",
        link="https://arxiv.org/abs/1911.04474",
        stacks={"encoder": "named entities"},
        point="relative",
        equation="q_t x_s + q_t R_{t-s} + u x_s + v R_{t-s}",
        parameters="2 * d * l",
        survey=SurveyRow(
            "MAM",
            recurring=True,
            unbound=True,
            parameters="2*d*l*h",
            differs={"parameters": "u and v of a head are d/h wide"},
        ),
    )

    stage = Stage.REPLACE

    def __init__(self, spec: StackSpec, *, form: str = "paper") -> None:
        super().__init__(spec)
        one_of("form", form, ("paper", "released"))
        self.head_dim = spec.dim // spec.heads
        least = 2 if form == "paper" else 4
        if self.head_dim % 2 or self.head_dim < least:
            raise PositionError(
                f"head_dim is {self.head_dim}; form='{form}' needs an even one of at least {least}"
            )
        self.form = form
        shape = (spec.layers, spec.heads, self.head_dim)
        self.u, self.v = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for block in (*self.u, *self.v):
            nn.init.xavier_normal_(block)

    def scale(self, head_dim: int) -> float:
        return 1.0

    def prepare(self, positions: Positions) -> TenerState:
        at = frequencies(self.head_dim, device=positions.key.device)
        if self.form == "released":
            half = self.head_dim // 2
            at = 10000.0 ** (-torch.arange(half, dtype=at.dtype, device=at.device) / (half - 1))
        query, key = (Waves.of(side, at, self.u.dtype) for side in (positions.query, positions.key))
        return TenerState(query, key)

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[TenerState]) -> QKV:
        if self.form == "paper":
            k = (
                context.x.view_as(k).to(k.dtype) + 0 * k
            )  # the unused projection gets zero gradients, not none
        return q, k, v

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[TenerState]) -> Tensor | None:
        state = context.state
        u, v = (vector[context.layer][:, None] for vector in (self.u, self.v))
        content = u @ k.transpose(-1, -2)
        x = q + v
        if self.form == "paper":
            return content + state.queries.toward(x[..., ::2], x[..., 1::2], state.keys)
        a, b = x.chunk(2, -1)
        near = state.queries.toward(-a, b, state.keys)
        a, b = k.chunk(2, -1)
        back = state.keys.toward(-a, b, state.queries).transpose(-1, -2)
        return content + near + back
