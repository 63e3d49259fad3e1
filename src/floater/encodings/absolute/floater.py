"""Learning to Encode Position for Transformer with Continuous Dynamical Model (Liu et al. 2020, ICML)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.baked import BakedFlow, baked
from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import at_least_one, chosen_blocks, is_number, one_of
from floater.encodings.context import AttentionContext, Projection
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import register
from floater.encodings.relative.waves import UNCOVERED, covered
from floater.encodings.spec import StackSpec
from floater.flow import (
    BoundedField,
    FlowEncoder,
    FlowVectors,
    MLPField,
    SinusoidField,
    SumField,
    init_small_,
    init_zero_,
    sinusoid,
)
from floater.flow.errors import PositionsOutOfRange
from floater.positions import Positions

_GRID = 16  # times of a clock from one position to the next between which vectors are interpolated
_MOST = 2**17  # positions of such a grid, whose vectors are all in memory
_STARTS = {
    "self": ("query", "key", "value"),
    "decoder": ("query", "key", "value", "cross_query"),
    "cross": ("key", "value"),
}


def learned_field(
    kind: str, dim: int, hidden: int | None, activation: str, adapt: Callable[[Tensor], Tensor] | None = None
) -> MLPField:
    """Build the field of the options `field`, `hidden` and `activation`, with adapted clocks.

    Raises:
        PositionError: if the kind is unknown, or a bounded field gets another activation than tanh.

    Example:
        >>> type(learned_field("bounded", 4, None, "tanh")).__name__
        'BoundedField'
    """
    one_of("field", kind, ("mlp", "bounded"))
    at_least_one(hidden=hidden)
    if kind == "mlp":
        return MLPField(dim, hidden, activation)
    if activation != "tanh":
        raise PositionError(f"field='bounded' goes with activation='tanh', not with {activation!r}")
    return BoundedField(dim, hidden, adapt=adapt)


def solved(flow: nn.Module, at: Tensor, name: str, below: int | None = None) -> FlowVectors:
    """Return the vectors of a flow at times (N, T), or name the encoding of the flow that refuses them.

    Raises:
        PositionError: if a time is negative or not finite.

    Example:
        >>> from floater.flow import ZeroField
        >>> solved(FlowEncoder(ZeroField(), 2, blocks=[0], names=["p"]), torch.tensor([[-1]]), "floater")
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: 'floater': positions must be finite and not negative, got -1
    """
    try:
        vectors: FlowVectors = flow(at, below=below)
    except PositionsOutOfRange as error:
        raise PositionError(f"'{name}': {error}") from error
    return vectors


class FloaterState(NamedTuple):
    """State of a forward pass, shared by the blocks.

    Args:
        sinusoid: (batch or 1, T, dim) that is added to the input; None where there is none.
        vectors: the vectors of each chosen block.
    """

    sinusoid: Tensor | None
    vectors: dict[int, FlowVectors]


@register("floater")
class Floater(PositionModel):
    """Position vectors computed by dp/dt = h(t, p; theta), t = position x delta x time_scale.

    injection="qkv" (section 3.3, equations 12 and 13): sinusoids stay at the input, and every chosen block
    adds b(t) to its queries, keys and values; with a decoder the queries of cross-attention have a start of
    their own, and the keys and values that they read have a flow at the source positions. Zero vectors leave
    the plain Transformer. injection="add" (section 3.1, equations 5 and 8): p(t) is added to the input of
    the chosen blocks, and there is no sinusoid.

    The spacing is the paper's. The released program has one of 0.01, ReLU, a field that starts by Xavier's
    rule with biases of zero, and starting vectors of about the same size as here.

    Args:
        spec: the stack of blocks; max_length x delta, or horizon x delta, is the span over which
            the vectors start of order one.
        injection: "qkv" or "add".
        blocks: "all", "input" (the first block), or a list of block indices.
        delta: time between neighbouring tokens.
        time_scale: factor of time; "learned" starts at 1 and is trained.
        start: "small" (small weights), "zero" (h = 0 and p(0) = 0: no change until trained), or "sinusoidal"
            (injection "add": equation 9 plus a field that starts at zero; equation 6 before training).
        share: "blocks", one theta for all blocks (equation 10), or "none", a theta per block.
        refresh_every: steps in training between solves (section 4.4).
        solver: a method of `floater.flow.solve`.
        step: longest step of a fixed-step solver, such as "rk4", in time; null is delta / 5 (appendix B.1).
        gradient: "discrete" or "adjoint" (equations 16 and 17).
        activation: nonlinearity of the field: "tanh", "silu", "gelu", "selu", or "relu" (as released); the
            bounded field has "tanh".
        hidden: width of the field; None means dim.
        field: "mlp" (section 4.4), or "bounded", whose vectors stay in a ball (`BoundedField`).
        uncovered: sinusoids at the input and clocks of the bounded field whose period exceeds max_length
            tokens: "keep" them, "cut" their frequency to zero (FoPE), or "round" all periods to whole tokens
            (Resonance RoPE); see `floater.encodings.relative.waves.covered`. A learned scale counts as 1.

    Raises:
        PositionError: if an option is not valid, options contradict each other, or sinusoids meet an odd dim;
            in `prepare`, if a position is negative or not finite.

    Example:
        >>> model = Floater(StackSpec(dim=512, heads=8, layers=6, max_length=128))
        >>> state = model.prepare(Positions.arange(3))
        >>> state.vectors[5].at(5, "query").shape
        torch.Size([1, 3, 512])
        >>> sum(parameter.numel() for parameter in model.parameters()) - 6 * 3 * 512  # less the starts
        526336
    """

    card = Card(
        paper="Liu et al. 2020",
        link="https://arxiv.org/abs/2003.09229",
        stacks={"encoder": "translation, RoBERTa", "decoder": "translation", "cross": "translation"},
        point="absolute",
        equation="W x_t + b + b(t); db/dt = W2 tanh(W1 b + u1 t + b1) + u2 t + b2",
        parameters="2 * d * (d + 2) + 3 * l * d",
        survey=SurveyRow(
            "APE",
            recurring=True,
            unbound=True,
            parameters="0 or more",
            differs={
                "injection": "vectors join queries, keys and values (equation 12); injection='add' gives APE",
                "parameters": "the survey leaves the flow open: this is the field of Table 6 and its starts",
            },
        ),
    )
    sites = ("self", "decoder", "cross")

    def __init__(
        self,
        spec: StackSpec,
        *,
        injection: str = "qkv",
        blocks: str | list[int] = "all",
        delta: float = 0.1,
        time_scale: float | str = 1.0,
        start: str = "small",
        share: str = "blocks",
        refresh_every: int = 1,
        solver: str = "auto",
        step: float | None = None,
        gradient: str = "discrete",
        activation: str = "tanh",
        hidden: int | None = None,
        field: str = "mlp",
        uncovered: str = "keep",
    ) -> None:
        super().__init__(spec)
        one_of("injection", injection, ("qkv", "add"))
        one_of("start", start, ("small", "zero", "sinusoidal"))
        one_of("share", share, ("blocks", "none"))
        if not is_number(time_scale) and time_scale != "learned":
            raise PositionError(f"time_scale is {time_scale!r}; it must be a positive number or 'learned'")
        if start == "sinusoidal" and injection == "qkv":
            raise PositionError(
                "start='sinusoidal' goes with injection='add': 'qkv' keeps sinusoids at the input"
            )
        if start == "sinusoidal" and field == "bounded":
            raise PositionError("start='sinusoidal' goes with field='mlp': a bounded one pulls vectors in")
        if spec.dim % 2 and (injection == "qkv" or start == "sinusoidal"):
            raise PositionError(f"dim is {spec.dim}; sinusoids need an even one")
        self.injection, self.start = injection, start
        self.blocks = chosen_blocks(blocks, spec.layers)
        names = ("p",) if injection == "add" else _STARTS[spec.site]
        if injection == "add" and spec.site == "cross":
            names = ()
        scale = 1.0 if isinstance(time_scale, str) else time_scale
        span = spec.horizon or spec.max_length
        self.span = span * delta * scale
        one_of("uncovered", uncovered, UNCOVERED)
        if uncovered != "keep" and injection == "add" and start != "sinusoidal" and field == "mlp":
            raise PositionError(
                f"uncovered={uncovered!r} changes sinusoids and clocks; injection='add' with field='mlp' and "
                f"start={start!r} has none"
            )
        self.adapt = partial(covered, span=span, uncovered=uncovered)
        clocks = partial(covered, span=span, uncovered=uncovered, step=delta * scale)
        groups = [self.blocks] if share == "blocks" else [(n,) for n in self.blocks]

        def flow(group: tuple[int, ...]) -> FlowEncoder:
            learned = learned_field(field, spec.dim, hidden, activation, clocks)
            whole: nn.Module = learned
            if start == "sinusoidal":
                whole = SumField(SinusoidField(spec.dim, delta * scale, self.adapt), learned)
            return FlowEncoder(
                whole,
                spec.dim,
                blocks=group,
                names=names,
                delta=delta,
                time_scale=scale,
                learn_time_scale=time_scale == "learned",
                method=solver,
                step=step,
                gradient=gradient,
                refresh_every=refresh_every,
                horizon=spec.horizon,
            )

        try:
            self.flows = nn.ModuleList(flow(group) for group in groups if names)
        except ValueError as error:
            raise PositionError(str(error)) from error
        self.reset_parameters()

    @property
    def max_positions(self) -> int | None:
        """Return the number of positions of a baked model; None if it is not baked."""
        return min((flow.length for flow in self.flows if isinstance(flow, BakedFlow)), default=None)

    def bake(self, length: int) -> None:
        self.flows = baked(self.flows, length)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for flow in self.flows:
            if isinstance(flow, BakedFlow):
                continue
            assert isinstance(flow, FlowEncoder)
            flow.reset_parameters()
            field = next(module for module in flow.modules() if isinstance(module, MLPField))
            init_small_(field, self.span)
            if self.start != "small":
                init_zero_(field)
            if self.start == "zero":
                flow.start.zero_()
            if self.start == "sinusoidal":
                flow.start.copy_(sinusoid(torch.zeros((), device=flow.start.device), self.spec.dim))

    def prepare(self, positions: Positions) -> FloaterState:
        query = positions.query
        has_input = self.spec.site != "cross"
        sines = self.injection == "qkv" and has_input
        base = sinusoid(query, self.spec.dim, self.adapt, dtype=self.dtype) if sines else None
        vectors = {}
        for flow in self.flows:
            below = positions.below if query.numel() else 1
            at = positions.counted_query if query.numel() else query.new_zeros(1, 1)
            values = solved(flow, at, "floater", below)
            if not query.numel():
                values = replace(values, index=query.long())
            vectors.update(dict.fromkeys(cast(FlowEncoder | BakedFlow, flow).blocks, values))
        return FloaterState(base, vectors)

    def prepare_times(self, positions: Positions) -> FloaterState:
        """Return sinusoids at the positions, and the vectors at a grid of times; see `TimedVectors`."""
        first, last = torch.stack(positions.key.aminmax()).tolist() if positions.key.numel() else (0, 0)
        if not first >= 0:
            raise PositionError(f"'floater' starts at position 0; position {first:g} was requested")
        if last >= _MOST:
            raise PositionError(
                f"a clock reads the flow on a grid up to the last position, which is {last:,}; it must "
                f"be below {_MOST:,}: give times in a longer unit, or leave out the clock"
            )
        index = torch.arange(
            2 * (int(last) + 1) * _GRID + 2, dtype=torch.float64, device=positions.key.device
        )
        if any(isinstance(flow, BakedFlow) for flow in self.flows):
            raise PositionError("a clock reads the flow between positions, where a baked one has no vectors")
        sinusoid = self.prepare(positions).sinusoid if self.injection == "qkv" else None
        vectors = {}
        for flow in self.flows:
            vectors.update(dict.fromkeys(cast(FlowEncoder, flow).blocks, flow(index[None] / _GRID)))
        return FloaterState(sinusoid, vectors)

    def vectors_at(self, times: Tensor, state: FloaterState, layer: int, name: str) -> Tensor | None:
        """Return the vectors of times (batch, T), between those of a grid; see `TimedVectors`."""
        if name == "input" and state.sinusoid is not None:
            return state.sinusoid if layer == 0 else None
        if layer not in self.blocks or (name == "input") != (self.injection == "add"):
            return None
        row = state.vectors[layer].of(layer, "p" if name == "input" else name)
        at = times * _GRID
        index = at.detach().floor().long().clamp(0, len(row) - 2)
        low, high = F.embedding(index, row), F.embedding(index + 1, row)
        return low + (at - index).to(row.dtype)[..., None] * (high - low)

    def embed(self, x: Tensor, state: FloaterState) -> Tensor:
        if state.sinusoid is not None:
            return x + state.sinusoid.to(x.dtype)
        return x + state.vectors[0].at(0, "p").to(x.dtype) if 0 in self.blocks else x

    def block(self, x: Tensor, state: FloaterState, layer: int) -> Tensor:
        if self.injection == "qkv" or layer == 0 or layer not in self.blocks:
            return x
        return x + state.vectors[layer].at(layer, "p").to(x.dtype)

    def projection_bias(self, name: Projection, context: AttentionContext[FloaterState]) -> Tensor | None:
        layer = context.layer
        if self.injection == "add" or layer not in self.blocks:
            return None
        return context.state.vectors[layer].at(layer, name)
