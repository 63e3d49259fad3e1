"""Attention Is All You Need: sinusoidal position vectors (Vaswani et al. 2017, section 3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from floater.encodings.absolute.added import AddedVectors
from floater.encodings.absolute.tokens import even
from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import one_of
from floater.encodings.context import AttentionContext, Projection
from floater.encodings.errors import PositionError
from floater.encodings.precise import Precise, at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.waves import UNCOVERED, covered
from floater.encodings.spec import Site, StackSpec
from floater.flow import sinusoid
from floater.positions import Positions

_PROJECTIONS: Mapping[str, Projection] = {"decoder": "cross_query", "cross": "key"}
"""The projection to which injection="cross" adds vectors, by site."""


@register("sinusoidal")
class Sinusoidal(Precise, AddedVectors):
    """Sines and cosines of the position, at the input (equation 6) or at every block (equation 7).

    Liu et al. 2020, section 2.2. With blocks="all", block n adds sin(i w) + sin(n w), n counted from 1, as
    Universal Transformers do (Dehghani et al. 2019). With "input" there is no term in n: that is the
    Transformer of 2017.

    injection="cross" does not change the input: in each block learned maps W_Q p_t and W_K p_s are added to
    the queries and keys of cross-attention, as FLOATER's vectors do (equation 12). The order within source
    and target is then left to a relative encoding: `position: [floater_relative, {name: sinusoidal,
    injection: cross}]`.

    Args:
        injection: "input", or "cross" for cross-attention alone (2 l d^2 parameters).
        blocks: "input", "all", or a list of block indices, with injection="input".
        uncovered: pairs whose period exceeds max_length tokens, or the horizon of random times: "keep" them,
            "cut" their frequency to zero (FoPE), or "round" all periods to whole tokens (Resonance RoPE); see
            `floater.encodings.relative.waves.covered`.
        frequencies: "fixed", or "learned" (Wang et al. 2021): dim / 2 parameters, which start as the fixed
            ones.

    Raises:
        PositionError: if dim is odd, a block does not exist, an option is not valid, or blocks are chosen
            with injection="cross".

    Example:
        >>> model = Sinusoidal(StackSpec(dim=4, heads=1, layers=1, max_length=16))
        >>> model.embed(torch.zeros(1, 1, 4), model.prepare(Positions.arange(1)))
        tensor([[[0., 1., 0., 1.]]])
    """

    card = Card(
        paper="Vaswani et al. 2017",
        link="https://arxiv.org/abs/1706.03762",
        stacks={"encoder": "translation", "decoder": "translation"},
        point="absolute",
        models="Transformer, MarianMT, M2M-100",
        equation="x_t + p_t; p_{t,2j} = sin(t / 10000^{2j/d}), p_{t,2j+1} = cos(t / 10000^{2j/d})",
        survey=SurveyRow("APE", learnable=False, unbound=True, parameters="0"),
    )

    sites: ClassVar[tuple[Site, ...]] = ("self", "decoder", "cross")
    precise = ("factors",)

    def __init__(
        self,
        spec: StackSpec,
        *,
        injection: str = "input",
        blocks: str | list[int] = "input",
        uncovered: str = "keep",
        frequencies: str = "fixed",
    ) -> None:
        super().__init__(spec, blocks)
        even(spec)
        one_of("injection", injection, ("input", "cross"))
        one_of("uncovered", uncovered, UNCOVERED)
        one_of("frequencies", frequencies, ("fixed", "learned"))
        self.needs_cross_attention = injection == "cross"
        if self.needs_cross_attention and blocks != "input":
            raise PositionError("blocks chooses inputs of blocks; injection='cross' adds to none")
        if self.needs_cross_attention or spec.site == "cross":
            self.blocks = ()
        maps = spec.layers if self.needs_cross_attention and spec.site in _PROJECTIONS else 0
        self.maps = nn.ParameterList(torch.empty(spec.dim, spec.dim) for _ in range(maps))
        self.cover = partial(covered, span=spec.horizon or spec.max_length, uncovered=uncovered)
        self.factors = None  # logarithms of those of the frequencies
        if frequencies == "learned":
            self.factors = nn.Parameter(torch.empty(spec.dim // 2, dtype=at_least_float32()))
        self.recurs = blocks != "input"
        self.reset_parameters()

    def overrides(self, *hooks: str) -> bool:
        """Return whether the model changes any of the named hooks; without maps it adds to no projection."""
        return super().overrides(*(hook for hook in hooks if hook != "projection_bias" or len(self.maps)))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for weight in self.maps:
            nn.init.normal_(weight, std=self.spec.dim**-0.5)
        if self.factors is not None:
            nn.init.zeros_(self.factors)

    def adapt(self, frequencies: Tensor) -> Tensor:
        """Return the frequencies after `uncovered` and the learned factors."""
        covered_frequencies: Tensor = self.cover(frequencies)
        return covered_frequencies if self.factors is None else covered_frequencies * self.factors.exp()

    def prepare(self, positions: Positions) -> Tensor:
        if not (self.blocks or len(self.maps)):
            return positions.query.new_empty(0)
        return sinusoid(positions.query, self.spec.dim, self.adapt, dtype=self.dtype)

    def vectors(self, state: Tensor, layer: int) -> Tensor:
        if not self.recurs:
            return state
        number = torch.full((), layer + 1, device=state.device)
        return state + sinusoid(number, self.spec.dim, dtype=self.dtype)

    def prepare_times(self, positions: Positions) -> None:
        """Return nothing: sinusoids have a closed form; see `TimedVectors`."""

    def vectors_at(self, times: Tensor, state: None, layer: int, name: str) -> Tensor | None:
        """Return the sinusoids of times (batch, T); see `TimedVectors`."""
        if name == "input":
            at = self.blocks and layer in self.blocks
            return self.vectors(sinusoid(times, self.spec.dim, self.adapt), layer) if at else None
        context = AttentionContext(sinusoid(times, self.spec.dim, self.adapt), layer)
        return self.projection_bias(name, context)  # type: ignore[arg-type]

    def projection_bias(self, name: Projection, context: AttentionContext[Tensor]) -> Tensor | None:
        if not len(self.maps) or name != _PROJECTIONS[self.spec.site]:
            return None
        weight: Tensor = self.maps[context.layer]
        added: Tensor = context.state.to(weight.dtype) @ weight
        return added
