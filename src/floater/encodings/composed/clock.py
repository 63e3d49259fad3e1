"""A clock that the text drives: another encoding at times that are sums of learned rates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.absolute.tokens import convolve, earlier_tokens, steps
from floater.encodings.card import Card
from floater.encodings.carried import carried, carry
from floater.encodings.checks import at_least_one, at_least_zero, one_of
from floater.encodings.composed.parts import Part, named
from floater.encodings.context import AttentionContext, Projection
from floater.encodings.errors import PositionError
from floater.encodings.model import QKV, PositionModel, Stage
from floater.encodings.precise import Precise, at_least_float32
from floater.encodings.registry import build_for, catalogue, register
from floater.encodings.relative.bias import describe_as
from floater.encodings.spec import StackSpec
from floater.encodings.timed import TimedBias, TimedRotation, TimedVectors
from floater.flow.precision import wide_dtype, without_autocast
from floater.positions import Positions


def _softplus(x: Tensor) -> Tensor:
    """Return log2(1 + 2^x), which is exactly 1 at 0."""
    return torch.where(x > 50, x, (1 + x.clamp(max=50).exp2()).log2())


RATES: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": _softplus,
    "sigmoid": lambda x: 2 * x.sigmoid(),
    "signed": lambda x: 1 + x,
    "angle": lambda x: x,
}
"""Rates as functions of w x + b; each but "angle" is exactly 1 at 0."""


@dataclass(frozen=True)
class ClockState:
    """The inputs of a clock other than the text.

    Args:
        key: positions of the keys, (batch or 1, S); zeros where the clock alone gives the times.
        step: position of each key less that of the token before it in its document, (batch or 1, S); zero at
            first tokens and at padding.
        next_step: position of the token after each key less that of the key, likewise, where clocks run from
            the end; else None.
        earlier: slots that the convolution reads; see `earlier_tokens`.
        first: slot of the first token of each key's document, (batch or 1, S); None where a row is one.
        inner: the state of the encoding for all times.
    """

    key: Tensor
    step: Tensor
    next_step: Tensor | None
    earlier: list[Tensor]
    first: Tensor | None
    inner: Any


@register("clock")
class Clock(Precise):
    """Another encoding at times that depend on the text: the sum of a rate for each token.

    In each block, clock c reads the input x of attention, and token i has the time

        t_i = p_i + sum_{k <= i} (r_k - 1) (p_k - p_{k-1}),   r_k = rate(w_c x_k + b_c),

    over the tokens k of its document; p are the positions. For p = 0, 1, 2, ... that is r_1 + ... + r_i: the
    time between key and query is the sum of the rates after the key, the query's included. w and b start at
    zero, where all rates are 1 and the encoding is the plain one: a trained model starts as it was. `std`
    starts w with small random numbers instead.

    `model: {name: alibi, clock: {per: head}}` in a configuration is short for `name: clock, model: alibi,
    per: head`.

    Known models are cases: the Forgetting Transformer (Lin et al. 2025) is a linear bias at softplus rates;
    Selective RoPE (Movahedi et al. 2025) is `rotary` with per="pair", rate="signed", a kernel of 4 and
    positions=False; RePo (Li et al. 2025) is `rotary` with rate="signed", sum=False, positions=False and
    `hidden`. Their authors start w, and Selective RoPE's convolution, with small random numbers, as `std`
    starts w. Selective RoPE also divides the input of each head by its norm, its w is a product of matrices
    of a low rank, 16 by default, and its base is 500,000; RePo has plain rotary positions in its first
    blocks.

    Vectors that an encoding adds have one clock in each block. It reads what the block reads, or its
    attention; no cache holds these for the tokens before, so such a model decodes without one. The sinusoids
    that "floater" adds to the input stay at the positions.

    In a stack that is not causal, too, the time of a token depends on the tokens before it; the time between
    two tokens depends on those between them and on the later one. With `both`, the clocks of the second half
    of the heads run from the end: that time depends on the earlier one in its place. A text and its mirror
    image then have the same times, with the halves exchanged.

    In the cache keys carry w x as two numbers, for half precision, sums are in double precision, and casts
    leave the parameters of the rates in float32: what is rounded away would add up along a text. On a CPU
    attention computes a bias of long texts in tiles of queries.

    Args:
        model: the encoding, a name or a mapping of `name` and options: one that rotates ("rotary",
            "floater_rotary"), that adds a bias of real distances ("alibi", "kerple", "fire", "dynamic_bias",
            "floater_relative"), or that adds vectors ("sinusoidal", "floater").
        per: "head", a clock for each head of a block; "block", one for all of its heads; "pair", one for each
            pair of components that rotates. None is "block" where vectors are added, else "head".
        rate: "softplus", log2(1 + 2^x), not negative; "sigmoid", 2 / (1 + e^-x), from 0 to 2; "signed",
            1 + x, with which times can run back; "angle", for encodings that rotate: each token adds x
            radians to the angles, whatever their frequency. None is "sigmoid" where vectors are added, which
            need it, else "softplus".
        kernel: tokens that a causal convolution of w x reads, at least 1; it starts as the identity.
        hidden: width of a gated network, w (silu(G x) * C x), in place of w x; None for none.
        sum: whether rates are added up; False makes the time p_i + r_i - 1, that of RePo.
        positions: whether the positions count; False leaves the sum of r_k - 1 alone.
        std: standard deviation of the initial w, at least 0.
        both: whether the clocks of half of the heads run from the end, in a stack that is not causal; not
            with per="block", a kernel, or sum=False.

    Raises:
        PositionError: if the encoding has no real times, or an option is not valid.

    Example:
        >>> clock = Clock(StackSpec(dim=4, heads=2, layers=1, max_length=16), model="alibi")
        >>> x, state = torch.randn(1, 3, 4), clock.prepare(Positions.arange(3))
        >>> _, k, _ = clock.qkv(*[x.view(1, 3, 2, 2)] * 3, AttentionContext(state, 0, x))
        >>> clock.times(k.transpose(1, 2), AttentionContext(state, 0))[0, 0, :, 0].tolist()
        [0.0, 1.0, 2.0]
        >>> _ = nn.init.constant_(clock.bias_of_rate, -torch.inf)  # time stands still
        >>> clock.times(k.transpose(1, 2), AttentionContext(state, 0))[0, 0, :, 0].tolist()
        [0.0, 0.0, 0.0]
    """

    card = Card(
        paper="Liu et al. 2020",
        link="https://arxiv.org/abs/2003.09229",
        point="relative",
        equation="an encoding at t_i = sum_{k <= i} r_k, r_k = rate(w x_k + b), 1 at first",
        parameters="l * h * (d + 1)",
    )

    stage = Stage.APPEND
    reads_content = False
    precise = ("weight", "bias_of_rate", "gate", "content", "convolution")

    def __init__(
        self,
        spec: StackSpec,
        *,
        model: Part = "rotary",
        per: str | None = None,
        rate: str | None = None,
        kernel: int = 1,
        hidden: int | None = None,
        sum: bool = True,
        positions: bool = True,
        std: float = 0.0,
        both: bool = False,
    ) -> None:
        super().__init__(spec)
        name, options = named(model)
        inner = build_for(name, spec, **options)
        if not (roles := _roles(kind := catalogue()[name])):
            names = ", ".join(name for name, each in catalogue().items() if _roles(each))
            raise PositionError(f"model is '{name}'; a clock drives one of: {names}")
        adds, rotates = "vectors_at" in roles, "turns_at" in roles
        per = ("block" if adds else "head") if per is None else per
        rate = ("sigmoid" if adds else "softplus") if rate is None else rate
        one_of("per", per, ("head", "block", "pair"))
        one_of("rate", rate, tuple(RATES))
        at_least_one(kernel=kernel, hidden=hidden)
        at_least_zero(std=std)
        if not rotates and (per == "pair" or rate == "angle"):
            chosen = "per='pair'" if per == "pair" else "rate='angle'"
            raise PositionError(f"{chosen} is for encodings that rotate pairs, which '{name}' does not")
        if adds and (per, rate, sum, positions) != ("block", "sigmoid", True, True):
            raise PositionError(
                f"'{name}' adds vectors, at times from 0 to twice the position: per must be 'block', rate "
                "'sigmoid', and sum and positions True"
            )
        if both and (adds or per == "block" or kernel > 1 or not sum or spec.heads % 2 or spec.causal):
            raise PositionError(
                "both=True is for heads of an even number with clocks of their own (per 'head' or 'pair'), "
                "in a stack that is not causal, with sum=True and without a kernel"
            )
        self.both = both
        self.sites = kind.sites  # type: ignore[misc]
        self.inner, self.planes = inner, inner.planes
        describe_as(self, inner)
        if adds and hasattr(inner, "card"):
            self.stage = Stage.KEEP
            why = "a cache holds nothing that the times of vectors could be computed from"
            self.card = replace(self.card, exceptions={**self.card.exceptions, "cache": why})
        self.per, self.rate, self.adds_up, self.positions, self.std = per, rate, sum, positions, std
        self.derives_positions = self.derives_positions or not (sum or positions)
        pairs = inner.turned // 2 if isinstance(inner, TimedRotation) and per == "pair" else 1
        self.shape = (1 if per == "block" else spec.heads), pairs
        clocks, width = self.shape[0] * pairs, spec.dim if hidden is None else hidden
        dtype = at_least_float32()
        self.weight = nn.Parameter(torch.empty(spec.layers, clocks, width, dtype=dtype))
        self.bias_of_rate = nn.Parameter(torch.empty(spec.layers, clocks, dtype=dtype))
        self.gate = self.content = self.convolution = None
        if hidden is not None:
            self.gate, self.content = (
                nn.Parameter(torch.empty(spec.layers, hidden, spec.dim, dtype=dtype)) for _ in range(2)
            )
        if kernel > 1:
            # the token itself first
            self.convolution = nn.Parameter(torch.empty(spec.layers, kernel, clocks, dtype=dtype))
        self.reset_parameters()

    @property
    def max_positions(self) -> int | None:
        """Return the bound of the encoding."""
        return self.inner.max_positions

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.inner.reset_parameters()
        nn.init.normal_(self.weight, std=self.std)
        nn.init.zeros_(self.bias_of_rate)
        for network in (self.gate, self.content):
            if network is not None:
                for block in network:
                    self.spec.init_linear(block)
        if self.convolution is not None:
            nn.init.zeros_(self.convolution)
            self.convolution[:, 0] = 1.0

    def overrides(self, *hooks: str) -> bool:
        """Return whether the clock of this encoding changes any of the named hooks."""
        if isinstance(self.inner, TimedVectors):
            idle = {"qkv", "rotated", "bias"}
        else:
            idle = {"embed", "block", "projection_bias"}
            idle |= {"bias"} if isinstance(self.inner, TimedRotation) else set()
        idle |= {hook for hook in ("scale", "query_gain") if not self.inner.overrides(hook)}
        return super().overrides(*(hook for hook in hooks if hook not in idle))

    def check_bake(self) -> None:
        raise PositionError("the times of a clock depend on the text: there is nothing to bake")

    def prepare(self, positions: Positions) -> ClockState:
        key, kernel = positions.key, 1 if self.convolution is None else self.convolution.shape[1]
        earlier = earlier_tokens(positions, max(kernel, 2))
        previous = earlier[1]
        step = steps(positions, previous)
        if positions.key_valid is not None:
            step = step.masked_fill(~positions.key_valid, 0)
        next_step = None
        if self.both:
            next_step = torch.zeros_like(step).scatter_add(1, previous.clamp(min=0).expand_as(step), step)
        inner: Any = self.inner
        first = None
        if isinstance(inner, TimedVectors):
            if positions.query.shape[1] != key.shape[1]:
                raise PositionError(
                    "a clock of added vectors reads a whole text: decode without a cache (input_ids and "
                    "use_cache=False)"
                )
            if positions.document is not None:
                # the slot of the last token without one before it; padding before any counts from the start
                first = torch.where(previous < 0, earlier[0], 0)
                if positions.key_valid is not None:
                    first = first.masked_fill(~positions.key_valid, 0)
                first = first.cummax(1).values
        key = key if self.positions else torch.zeros_like(key)
        return ClockState(key, step, next_step, earlier[:kernel], first, inner.prepare_times(positions))

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[ClockState]) -> QKV:
        if isinstance(self.inner, TimedVectors):
            return q, k, v
        driven = self.driven(context.x, context.layer).expand(*k.shape[:-1], -1)
        return q, carry(k, driven), v

    def driven(self, x: Tensor, layer: int) -> Tensor:
        """Return w x of inputs (batch, T, dim) for each clock, (batch, T, heads or 1, pairs)."""
        x = x.to(at_least_float32(x.dtype))
        with without_autocast(x):
            if self.gate is not None and self.content is not None:
                gate, content = (part[layer].to(x.dtype) for part in (self.gate, self.content))
                x = F.silu(F.linear(x, gate)) * F.linear(x, content)
            driven = F.linear(x, self.weight[layer].to(x.dtype))
        return driven.view(*driven.shape[:-1], *self.shape)

    def advance(self, k: Tensor, context: AttentionContext[ClockState]) -> Tensor:
        """Return by how much the clocks of keys run ahead of their positions, in radians with rate="angle".

        Args:
            k: (batch, heads, S, width), as `qkv` returns them, cached ones first.
            context: what hooks read.

        Returns:
            (batch, heads or 1, S, pairs), in double precision.
        """
        heads, pairs = self.shape
        driven = carried(k[:, :heads], pairs, wide_dtype(k.device))[1]
        return self._summed(driven, context.state, context.layer)

    def _summed(self, driven: Tensor, state: ClockState, layer: int) -> Tensor:
        """Return the sums of rates less 1 for w x, both (batch, heads or 1, S, pairs)."""
        heads, pairs = self.shape
        if self.convolution is not None:
            taps = self.convolution[layer].to(driven.dtype).view(-1, heads, 1, pairs)
            driven = convolve(driven, taps, state.earlier)
        offset = self.bias_of_rate[layer].to(driven.dtype).view(heads, 1, pairs)
        ahead = RATES[self.rate](driven + offset)
        if self.rate != "angle":
            ahead = ahead - 1
        if not self.adds_up:
            return ahead
        if state.next_step is None:
            return (ahead * state.step[:, None, :, None]).cumsum(-2)
        first, second = ahead.chunk(2, 1)
        first = (first * state.step[:, None, :, None]).cumsum(-2)
        second = -(second * state.next_step[:, None, :, None]).flip(-2).cumsum(-2).flip(-2)
        return torch.cat([first, second], 1)

    def times(self, k: Tensor, context: AttentionContext[ClockState]) -> Tensor:
        """Return the times of keys; arguments and result as of `advance`, in tokens."""
        return context.state.key[:, None, :, None] + self.advance(k, context)

    def _vectors(self, x: Tensor, state: ClockState, layer: int, name: str) -> Tensor | None:
        """Return the vectors that the encoding adds where a block reads x (batch, T, dim)."""
        if not isinstance(self.inner, TimedVectors):
            return None
        driven = self.driven(x, layer).transpose(1, 2).to(wide_dtype(x.device))
        ahead = self._summed(driven, state, layer)[:, 0, :, 0]
        if state.first is not None:
            ahead = ahead - ahead.gather(1, state.first.expand_as(ahead))
        return self.inner.vectors_at(state.key + ahead, state.inner, layer, name)

    def embed(self, x: Tensor, state: ClockState) -> Tensor:
        vectors = self._vectors(x, state, 0, "input")
        return x if vectors is None else x + vectors.to(x.dtype)

    def block(self, x: Tensor, state: ClockState, layer: int) -> Tensor:
        vectors = self._vectors(x, state, layer, "input") if layer else None
        return x if vectors is None else x + vectors.to(x.dtype)

    def projection_bias(self, name: Projection, context: AttentionContext[ClockState]) -> Tensor | None:
        return self._vectors(context.x, context.state, context.layer, name)

    def rotated(self, q: Tensor, k: Tensor, context: AttentionContext[ClockState]) -> tuple[Tensor, Tensor]:
        inner, state = self.inner, context.state
        if isinstance(inner, TimedVectors):
            return q, k
        plain = k[..., : q.shape[-1]]
        if not isinstance(inner, TimedRotation):
            return q, plain
        ahead = self.advance(k, context).transpose(1, 2)  # (batch, S, heads or 1, pairs)
        at, angles = state.key[:, :, None, None], None
        if self.rate == "angle":
            angles = ahead
        else:
            at = at + ahead

        def turned(x: Tensor, turns: Any) -> Tensor:
            return inner.rotate(x.transpose(1, 2), turns).transpose(1, 2)

        turns = inner.turns_at(at, state.inner, context.layer, angles)
        rotated = turned(plain, turns)
        if q.shape[2] != k.shape[2]:
            first = k.shape[2] - q.shape[2]
            turns = inner.turns_at(
                at[:, first:], state.inner, context.layer, None if angles is None else angles[:, first:]
            )
        return turned(q, turns), rotated

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[ClockState]) -> Tensor | None:
        if not isinstance(self.inner, TimedBias):
            return None
        times = self.times(k, context)[..., 0]
        query = times[..., times.shape[-1] - q.shape[2] :]
        return self.inner.bias_at(query, times, context.state.inner, context.layer)

    def scale(self, head_dim: int) -> float:
        return self.inner.scale(head_dim)

    def query_gain(self, head_dim: int) -> float:
        return self.inner.query_gain(head_dim)


def _roles(kind: type[PositionModel]) -> set[str]:
    """Return the methods of a class by which a clock drives it; inherited ones do not count."""
    return {"turns_at", "bias_at", "vectors_at"} & vars(kind).keys()
