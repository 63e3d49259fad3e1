"""RoFormer: Enhanced Transformer with Rotary Position Embedding (Su et al. 2021, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import one_of
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import QKV, PositionModel, Stage
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.rescaling import rescaled
from floater.encodings.relative.waves import UNCOVERED, covered, frequencies
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("rotary")
class Rotary(PositionModel):
    """Queries and keys are rotated by angles that grow with their position (equations 14, 15 and 34).

    Component pairs are rotated by t / base^(2i / head_dim); the product of query t and key s then depends on
    the positions only through s - t. The survey's equation 26 writes the rotation in the opposite sense,
    which gives the same products. Values are unchanged; positions may be real.

    Args:
        spec: the stack of blocks; head_dim must be even.
        pairs: "interleaved", components 2i and 2i + 1 (the paper); "half", components i and i + head_dim / 2
            (GPT-NeoX and most models since).
        base: base of the frequencies, above 1.
        partial: share of the components of a head that rotate, the first ones (GPT-NeoX: 0.25), above 0 and
            at most 1; rounded down to whole components, of which there must be an even number.
        scaling: None, or a rule that rescales the frequencies for longer texts: a mapping with `rope_type`
            "linear", "dynamic", "yarn", "longrope", "llama3" or "proportional" and its keys; see
            `floater.encodings.relative.rescaling.rescaled`. Rotated keys are cached, so "dynamic" and
            "longrope" scale for a declared `length`, not for that of a call.
        uncovered: pairs whose period exceeds max_length tokens: "keep" them, "cut" their frequency to zero
            (FoPE), or "round" all periods to whole tokens (Resonance RoPE); see
            `floater.encodings.relative.waves.covered`. Rounding follows scaling; cutting goes by the
            frequencies before it.

    Raises:
        PositionError: if the number of components that rotate is odd or an option is not valid.

    Example:
        >>> model = Rotary(StackSpec(dim=4, heads=2, layers=1, max_length=16))
        >>> x = torch.tensor([1.0, 0.0]).expand(1, 2, 2, 2)
        >>> q, _, _ = model.qkv(x, x, x, AttentionContext(model.prepare(Positions.arange(2)), 0))
        >>> q[0, 1, 0]  # cos 1, sin 1
        tensor([0.5403, 0.8415])
    """

    card = Card(
        paper="Su et al. 2021",
        link="https://arxiv.org/abs/2104.09864",
        stacks={"encoder": "BERT, translation", "causal": "language models", "decoder": "translation"},
        point="relative",
        models="Llama, Mistral, Qwen, Gemma, GPT-NeoX, ModernBERT",
        equation="(R_t W_q x_t)^T (R_s W_k x_s), R_t rotates pair i by t / 10000^{2i/d_h}",
        survey=SurveyRow("MAM", learnable=False, recurring=True, unbound=True, parameters="0"),
    )

    stage = Stage.ROTATE

    def __init__(
        self,
        spec: StackSpec,
        *,
        pairs: str = "interleaved",
        base: float = 10000.0,
        partial: float = 1.0,
        scaling: Mapping[str, Any] | None = None,
        uncovered: str = "keep",
    ) -> None:
        super().__init__(spec)
        self.turned = check_pairs(spec, pairs, base, partial)
        self.planes = planes(pairs, self.turned)
        one_of("uncovered", uncovered, UNCOVERED)
        rescaled(self.turned, base, spec.max_length, scaling)  # refuses invalid values
        self.pairs, self.base, self.scaling, self.uncovered = pairs, base, scaling, uncovered

    @property
    def serves_some_heads(self) -> bool:
        return type(self).qkv is Rotary.qkv and not self.overrides("rotated", "bias", "logits", "weights")

    def frequencies(self, device: torch.device) -> tuple[Tensor, float]:
        """Return the frequencies of rotating pairs, (N,) in float64, and the factor of sines and cosines."""
        span = self.spec.max_length
        scaled, factor = rescaled(self.turned, self.base, span, self.scaling, device)
        if self.uncovered == "cut":
            # training covers the plain periods; scaling comes after it and leaves no more uncovered
            plain = frequencies(self.turned, self.base, device)
            return scaled * (covered(plain, span, "cut") > 0), factor
        return covered(scaled, span, self.uncovered), factor

    def prepare(self, positions: Positions) -> tuple[Tensor, Tensor]:
        query = positions.query
        return self.turns_at(query[:, :, None, None], self.prepare_times(positions), 0)

    def prepare_times(self, positions: Positions) -> tuple[Tensor, float]:
        """Return the frequencies; see `TimedRotation`."""
        return self.frequencies(positions.query.device)

    def turns_at(
        self, times: Tensor, state: tuple[Tensor, float], layer: int, angles: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return sines and cosines (batch or 1, T, heads or 1, pairs); see `TimedRotation`."""
        at, factor = state
        angle = times.double() * at
        angle = angle if angles is None else angle + angles
        return factor * angle.sin(), factor * angle.cos()

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[tuple[Tensor, Tensor]]) -> QKV:
        return self.rotate(q, context.state), self.rotate(k, context.state), v

    def rotate(self, x: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate queries or keys (batch, T, heads, head_dim) by the angles of a state."""
        sin, cos = (part.to(at_least_float32(x.dtype)) for part in state)
        if self.turned == x.shape[-1]:
            return turn(x, sin, cos, self.pairs)
        turned = turn(x[..., : self.turned], sin, cos, self.pairs)
        return torch.cat([turned, x[..., self.turned :]], -1)


def check_pairs(spec: StackSpec, pairs: str, base: float, partial: float = 1.0) -> int:
    """Return the number of components of a head that rotate, if they form pairs.

    Raises:
        PositionError: if that number is odd or 0, `pairs` or `partial` is not valid, or `base` is at most 1.

    Example:
        >>> check_pairs(StackSpec(dim=8, heads=2, layers=1, max_length=16), "half", 10000.0)
        4
    """
    one_of("pairs", pairs, ("interleaved", "half"))
    if not base > 1:
        raise PositionError(f"base is {base}; it must be above 1")
    if not 0 < partial <= 1:
        raise PositionError(f"partial is {partial}; it must be above 0 and at most 1")
    head_dim = spec.dim // spec.heads
    turned = int(head_dim * partial)
    if turned % 2 or not turned:
        part = "" if turned == head_dim else f" times partial {partial} is {turned}"
        raise PositionError(f"head_dim is {head_dim}{part}; rotary positions need an even one")
    return turned


def planes(pairs: str, turned: int) -> tuple[str, int]:
    """Return the planes in which pairs of the first components rotate.

    Neighbours are pairs whatever the number of components that rotate, halves are not.

    Example:
        >>> planes("interleaved", 4) == planes("interleaved", 8), planes("half", 4) == planes("half", 8)
        (True, False)
    """
    return pairs, turned if pairs == "half" else 0


def turn(x: Tensor, sin: Tensor, cos: Tensor, pairs: str) -> Tensor:
    """Rotate each pair of components: (a, b) becomes (a cos - b sin, a sin + b cos).

    Args:
        x: (batch, T, heads, head_dim).
        sin: sines of the angles, broadcastable to (batch, T, heads, head_dim / 2).
        cos: cosines of the angles, of the same shape.
        pairs: see `Rotary`.

    Returns:
        The shape and type of `x`.

    Example:
        >>> turn(torch.tensor([[[[1.0, 2.0]]]]), torch.ones(1), torch.zeros(1), "half").tolist()
        [[[[-2.0, 1.0]]]]
    """
    if pairs == "half":
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)
