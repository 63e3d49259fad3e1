"""Attention Is All You Need: sinusoidal position vectors (Vaswani et al. 2017, section 3.5)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from floater.encodings.absolute.added import AddedVectors
from floater.encodings.absolute.tokens import even
from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import one_of
from floater.encodings.registry import register
from floater.encodings.relative.waves import UNCOVERED, covered
from floater.encodings.spec import StackSpec
from floater.flow import sinusoid
from floater.positions import Positions


@register("sinusoidal")
class Sinusoidal(AddedVectors):
    """Sines and cosines of the position, at the input (equation 6) or at every block (equation 7).

    Liu et al. 2020, section 2.2. With blocks="all", block n adds sin(i w) + sin(n w), n counted from 1, as
    Universal Transformers do (Dehghani et al. 2019). With "input" the term in n is left out: that is the
    Transformer of 2017.

    Args:
        blocks: "input", "all", or a list of block indices.
        uncovered: pairs whose period exceeds max_length tokens, or the horizon of random times: "keep" them,
            "cut" their frequency to zero (FoPE), or "round" all periods to whole tokens (Resonance RoPE); see
            `floater.encodings.relative.waves.covered`.

    Raises:
        PositionError: if dim is odd, a block does not exist, or `uncovered` is not valid.

    Example:
        >>> model = Sinusoidal(StackSpec(dim=4, heads=1, layers=1, max_length=16))
        >>> model.embed(torch.zeros(1, 1, 4), model.prepare(Positions.arange(1)))
        tensor([[[0., 1., 0., 1.]]])
    """

    card = Card(
        paper="Vaswani et al. 2017",
        link="https://arxiv.org/abs/1706.03762",
        point="absolute",
        models="Transformer, MarianMT, M2M-100",
        equation="x_t + p_t; p_{t,2j} = sin(t / 10000^{2j/d}), p_{t,2j+1} = cos(t / 10000^{2j/d})",
        survey=SurveyRow("APE", learnable=False, unbound=True, parameters="0"),
    )

    def __init__(
        self, spec: StackSpec, *, blocks: str | list[int] = "input", uncovered: str = "keep"
    ) -> None:
        super().__init__(spec, blocks)
        even(spec)
        one_of("uncovered", uncovered, UNCOVERED)
        self.adapt = partial(covered, span=spec.horizon or spec.max_length, uncovered=uncovered)
        self.recurs = blocks != "input"

    def prepare(self, positions: Positions) -> Tensor:
        return sinusoid(positions.query, self.spec.dim, self.adapt)

    def vectors(self, state: Tensor, layer: int) -> Tensor:
        if not self.recurs:
            return state
        return state + sinusoid(torch.tensor(layer + 1, device=state.device), self.spec.dim)
