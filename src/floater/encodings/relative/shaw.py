"""Self-Attention with Relative Position Representations (Shaw, Uszkoreit, Vaswani 2018, section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from floater.encodings.absolute.tokens import whole_numbers
from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import at_least_one, one_of
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.precise import Precise, at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.distances import Distances, pairs
from floater.encodings.spec import StackSpec
from floater.encodings.terms import AttentionTerms
from floater.flow import sinusoid
from floater.positions import Positions


class ShawTables(PositionModel):
    """Vectors a of the positions of a query and a key, added to keys and values.

    Logits get q_t . a^K / sqrt(head_dim), outputs the sum over s of w_ts a^V. Each block has its tables; the
    heads share them.
    """

    keys: nn.Parameter
    values_: nn.Parameter | None
    half_read: ClassVar[Mapping[str, int]] = {"keys": -2, "values_": -2}

    def tables(self, *shape: int, values: bool) -> None:
        """Create the tables (layers, *shape, head_dim)."""
        shape = (self.spec.layers, *shape, self.spec.dim // self.spec.heads)
        self.keys = nn.Parameter(torch.empty(shape))
        self.values_ = nn.Parameter(torch.empty(shape)) if values else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in self.parameters(recurse=False):
            nn.init.normal_(table, std=table.shape[-1] ** -0.5)


@register("shaw")
class Shaw(Precise, ShawTables):
    """One vector per clipped distance, for keys and for values (equations 3 and 4, the survey's 9 to 11).

    a_ts = w_{clip(s - t, k)}. The survey's count has a vector of width d for each distance below t_max; the
    paper clips at k = 16 and shares vectors of width head_dim among the heads. The paper does not specify
    whether blocks share tables; here each has its own, as in the authors' code. Its initialisation is
    Xavier's.

    Distances are clipped as in the paper, so there is no maximum length.

    Args:
        clip: the farthest distance with a vector of its own, at least 1.
        values: whether values get vectors too; the paper finds that keys alone may suffice.
        vectors: "learned", or "sinusoidal": the sinusoids of the clipped distance, without parameters (Wei et
            al. 2019; fixed vectors in Rosendahl et al. 2019), or "frequencies": sinusoids whose frequencies
            each block learns (Wang et al. 2021).

    Raises:
        PositionError: if an option is not valid, or the width of a head is odd with sinusoids; in `prepare`,
            if positions are real.

    Example:
        >>> model = Shaw(StackSpec(dim=8, heads=2, layers=2, max_length=16), clip=2)
        >>> model.keys.shape
        torch.Size([2, 5, 4])
    """

    card = Card(
        paper="Shaw et al. 2018",
        link="https://arxiv.org/abs/1803.02155",
        stacks={"encoder": "translation", "decoder": "translation"},
        point="relative",
        equation="q_t (k_s + a^K_{clip(s-t)}) / sqrt(d_h); sum_s w_ts (v_s + a^V_{clip(s-t)})",
        parameters="2 * (2 * clip + 1) * (d // h) * l",
        survey=SurveyRow(
            "MAM",
            recurring=True,
            parameters="2*(2*t_max-1)*d*l",
            differs={"parameters": "heads share vectors of width d/h, distances are clipped at 16"},
        ),
        exceptions={
            "real": "a table has nothing between whole distances",
            "rows": "rows of later keys are never read in a causal stack",
        },
    )

    precise = ("factors",)

    def __init__(
        self, spec: StackSpec, *, clip: int = 16, values: bool = True, vectors: str = "learned"
    ) -> None:
        super().__init__(spec)
        at_least_one(clip=clip)
        one_of("vectors", vectors, ("learned", "sinusoidal", "frequencies"))
        self.clip, self.vectors, self.with_values = clip, vectors, values
        self.factors = None  # logarithms of those of the frequencies
        if vectors == "learned":
            self.tables(2 * clip + 1, values=values)
            return
        width = spec.dim // spec.heads
        if width % 2:
            raise PositionError(f"a head has {width} components; sinusoids need an even number")
        for name in ("keys", "values_"):
            self.register_parameter(name, None)
        if vectors == "frequencies":
            self.factors = nn.Parameter(torch.empty(spec.layers, width // 2, dtype=at_least_float32()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.vectors != "learned":
            if self.factors is not None:
                nn.init.zeros_(self.factors)
            return
        for table in self.parameters(recurse=False):
            for block in table:
                nn.init.xavier_uniform_(block)

    def block_tables(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """Return the vectors of keys and of values of a block, (2 clip + 1, head_dim) each."""
        if self.vectors == "learned":
            return self.keys[layer], None if self.values_ is None else self.values_[layer]
        factors = self.factors
        adapt = None if factors is None else lambda w: w * factors[layer].exp()
        device = None if factors is None else factors.device
        distances = torch.arange(-self.clip, self.clip + 1, device=device)
        table = sinusoid(distances, self.spec.dim // self.spec.heads, adapt, dtype=self.dtype)
        return table, table if self.with_values else None

    def prepare(self, positions: Positions) -> Distances:
        return Distances.of(positions, "shaw", reach=self.clip)

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[Distances]) -> Tensor | None:
        keys = self.block_tables(context.layer)[0].to(q)
        return self.scale(q.shape[-1]) * context.state.queries(q, context.state.rows(keys, self.clip))

    def attention_terms(
        self, q: Tensor, k: Tensor, context: AttentionContext[Distances]
    ) -> AttentionTerms | None:
        state = context.state
        if state.index is not None:
            return None
        keys, values = (None if x is None else x.to(q) for x in self.block_tables(context.layer))
        if state.first is not None:
            return AttentionTerms(queries=keys, values=values, first_entry=-self.clip - state.first)
        keys, values = (None if x is None else state.rows(x, self.clip) for x in (keys, values))
        return AttentionTerms(queries=keys, values=values)

    def value_bias(self, weights: Tensor, context: AttentionContext[Distances]) -> Tensor | None:
        values = self.block_tables(context.layer)[1]
        if values is None:
            return None
        return context.state.weighted(weights, context.state.rows(values.to(weights), self.clip))


@register("shaw_absolute")
class ShawAbsolute(ShawTables):
    """One vector per pair of positions, for keys and for values: the survey's equations 9 and 10.

    Neither the paper nor its code has this; it is the survey's reading of the paper's general form. Bounded.
    Where the samples of a batch have different positions, their vectors (batch, T, S, head_dim) are gathered,
    once for all heads.

    Args:
        spec: the stack of blocks; max_length positions.
        values: whether values get vectors too.

    Raises:
        PositionError: in `prepare`, if positions are real or past the table.

    Example:
        >>> ShawAbsolute(StackSpec(dim=8, heads=2, layers=2, max_length=16)).keys.shape
        torch.Size([2, 16, 16, 4])
    """

    card = Card(
        paper="Shaw et al. 2018",
        link="https://arxiv.org/abs/1803.02155",
        point="absolute",
        equation="q_t (k_s + a^K_{t,s}) / sqrt(d_h); sum_s w_ts (v_s + a^V_{t,s})",
        parameters="2 * t_max**2 * (d // h) * l",
        survey=SurveyRow(
            "MAM",
            recurring=True,
            parameters="2*t_max^2*d*l",
            differs={"parameters": "heads share vectors of width d/h, as in the relative form"},
        ),
        exceptions={
            "real": "a table has nothing between whole positions",
            "rows": "rows of later keys are never read in a causal stack",
        },
    )
    bounded = True

    def __init__(self, spec: StackSpec, *, values: bool = True) -> None:
        super().__init__(spec)
        self.tables(spec.max_length, spec.max_length, values=values)

    def prepare(self, positions: Positions) -> Positions:
        whole_numbers(positions, "shaw_absolute", self.spec.max_length)
        return positions

    def vectors(self, table: Tensor, state: Positions) -> Tensor:
        """Return (batch or 1, T, S, head_dim) of a block's table."""
        return pairs(table.movedim(-1, 0), state).movedim(1, -1)

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[Positions]) -> Tensor | None:
        vectors = self.vectors(self.keys[context.layer], context.state).to(q.dtype)
        return self.scale(q.shape[-1]) * torch.einsum("bhtd,btsd->bhts", q, vectors)

    def value_bias(self, weights: Tensor, context: AttentionContext[Positions]) -> Tensor | None:
        if self.values_ is None:
            return None
        vectors = self.vectors(self.values_[context.layer], context.state).to(weights.dtype)
        return torch.einsum("bhts,btsd->bhtd", weights, vectors)
