"""Hard-Coded Gaussian Attention for Neural Machine Translation (You, Sun, Iyer 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from floater.encodings.card import Card
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.bias import DistanceBias, PositionBias, bias_of_distance
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("gaussian")
class Gaussian(PositionBias):
    """Hard-Coded Gaussian Attention for Neural Machine Translation (You, Sun, Iyer 2020, section 3).

    The weights of a head are the density of a Gaussian around the query's position plus an offset; queries
    and keys have no influence. As in the released code they are not normalised: the weight of padding, of
    later keys in a causal stack and of positions outside the text is not given to other keys. Positions may
    be real.

    Args:
        offsets: centres, key - query, assigned to the heads in turn; None for those of the released
            configurations, -1 and 1, in a causal stack -1 and 0.
        std: standard deviation, positive.

    Raises:
        PositionError: if offsets is empty or std not positive.

    Example:
        >>> model = Gaussian(StackSpec(dim=8, heads=1, layers=1, max_length=16), offsets=[-1])
        >>> state = model.prepare(Positions.arange(2))
        >>> model.weights(model.correlation(state, 0), AttentionContext(state, 0))
        tensor([[[[0.2420, 0.0540],
                  [0.3989, 0.2420]]]])
    """

    card = Card(
        paper="You et al. 2020",
        link="https://arxiv.org/abs/2005.00742",
        stacks={"encoder": "translation", "decoder": "translation", "cross": "translation, in a variant"},
        point="relative",
        equation="exp(-(s - t - c)^2 / (2 std^2)) / (std sqrt(2 pi)) in place of the softmax",
    )

    def __init__(
        self, spec: StackSpec, *, offsets: tuple[float, ...] | list[float] | None = None, std: float = 1.0
    ) -> None:
        super().__init__(spec)
        if offsets is None:
            offsets = (-1, 0) if spec.causal or spec.site == "decoder" else (-1, 1)
        if not offsets:
            raise PositionError("offsets is empty; it must hold at least one centre")
        if not std > 0:
            raise PositionError(f"std is {std}; it must be positive")
        self.offsets = [float(offsets[head % len(offsets)]) for head in range(spec.heads)]
        self.std = std

    def scale(self, head_dim: int) -> float:
        return 0.0

    def prepare(self, positions: Positions) -> DistanceBias | Tensor:
        return bias_of_distance(positions, "gaussian", self._gaussian)

    def weights(self, logits: Tensor, context: AttentionContext[DistanceBias | Tensor]) -> Tensor:
        return logits.exp() / (self.std * math.sqrt(2 * math.pi))

    def _gaussian(self, delta: Tensor) -> Tensor:
        delta = delta.to(at_least_float32(self.dtype))
        centres = torch.stack([delta.new_full((1, 1), offset) for offset in self.offsets])
        return -((delta - centres) / self.std).square() / 2
