"""DiSAN: Directional Self-Attention Network (Shen et al. 2018, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import one_of
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import register
from floater.encodings.relative.bias import PairBias
from floater.encodings.relative.distances import Distances, consecutive
from floater.encodings.spec import StackSpec
from floater.encodings.terms import AttentionTerms
from floater.positions import Positions


@dataclass(eq=False)
class Sides(PairBias):
    """The keys that each query attends to, whose matrix is computed on demand.

    Args:
        positions: positions of queries and keys.
        allowed: whether a query attends to a key at distances (..., 1, T, S): (..., heads or 1, T, S).
    """

    positions: Positions
    allowed: Callable[[Tensor], Tensor]

    def _whole(self) -> Tensor:
        return self.allowed(self.positions.delta[:, None])

    def terms(self, q: Tensor, k: Tensor, scale: float) -> AttentionTerms | None:
        if not consecutive(self.positions):
            return None
        seen = self.allowed(Distances.of(self.positions, "disan").values[None, None])[:, 0]
        return AttentionTerms(bias=q.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf), has_mask=True)


@register("disan")
class DiSAN(PositionModel):
    """Heads attend to earlier tokens only, to later ones only, or to all but the token itself.

    The masks are strict: a token never attends to itself, and one without any other to attend to gets zeros.
    "forward" is the released code's name for attending to earlier tokens. Of DiSAN this is the mask alone, as
    in the survey; its additive, multi-dimensional attention is not part of it. Positions may be real.

    Args:
        direction: "both" (the first half of the heads forward, the others backward), "forward", "backward" or
            "diagonal" (all but itself); None means "both", and "forward" in a causal stack, where heads that
            look backward would have no keys.

    Raises:
        PositionError: if direction is not valid, or a causal stack would have heads without keys.

    Example:
        >>> model = DiSAN(StackSpec(dim=8, heads=2, layers=1, max_length=16), direction="forward")
        >>> model.mask(AttentionContext(model.prepare(Positions.arange(2)), 0))
        tensor([[[[False, False],
                  [ True, False]]]])
    """

    card = Card(
        paper="Shen et al. 2018",
        link="https://arxiv.org/abs/1709.04696",
        stacks={"encoder": "sentences, with masks of both directions"},
        point="relative",
        equation="q_t k_s / sqrt(d_h) - (inf where s >= t, s <= t or s = t)",
        survey=SurveyRow(
            "MAM",
            learnable=False,
            recurring=True,
            unbound=True,
            parameters="0",
            differs={"unbound": "it serves any length but distinguishes directions, not distances"},
        ),
    )
    derives_positions = True

    def __init__(self, spec: StackSpec, *, direction: str | None = None) -> None:
        super().__init__(spec)
        if direction is None:
            direction = "forward" if spec.causal else "both"
        one_of("direction", direction, ("both", "forward", "backward", "diagonal"))
        if spec.causal and direction in ("both", "backward"):
            raise PositionError(
                f"direction is {direction!r}; heads that look backward, at later tokens, have no keys in a "
                "causal stack: leave it out, which is 'forward' there"
            )
        self.direction = direction

    def prepare(self, positions: Positions) -> Sides:
        return Sides(positions, self.allowed)

    def allowed(self, delta: Tensor) -> Tensor:
        """Return whether a query attends to a key at distances (..., 1, T, S): (..., heads or 1, T, S)."""
        if self.direction == "diagonal":
            return delta != 0
        heads = self.spec.heads
        forward = {"both": heads - heads // 2, "forward": 1, "backward": 0}[self.direction]
        backward = {"both": heads // 2, "forward": 0, "backward": 1}[self.direction]
        return torch.cat([(delta < 0)] * forward + [(delta > 0)] * backward, -3)

    def mask(self, context: AttentionContext[Sides]) -> Tensor | None:
        return context.state.matrix

    def attention_terms(
        self, q: Tensor, k: Tensor, context: AttentionContext[Sides]
    ) -> AttentionTerms | None:
        return context.state.terms(q, k, self.scale(q.shape[-1]))
