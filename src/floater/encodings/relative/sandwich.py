"""Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis (Chi et al. 2023)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from floater.encodings.card import Card
from floater.encodings.errors import PositionError
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.bias import DistanceBias, PositionBias
from floater.encodings.relative.distances import Distances, consecutive
from floater.encodings.relative.waves import frequencies
from floater.encodings.spec import StackSpec
from floater.positions import Positions

_CHUNK = 2**22  # cosines computed at once


@register("sandwich")
class Sandwich(PositionBias):
    """The products of sinusoids of position, compressed head by head, as a bias without parameters.

    Head i = 1, ..., h adds p_t . p_s h / (8 i), where p_t . p_s = sum_j cos((t - s) / 10000^(2j / width))
    depends on the distance alone. It falls about as the logarithm of the distance does. Here width / 2, the
    product of a position with itself, is subtracted, which the softmax cancels. Sources: section 5 and
    appendix E. Positions may be real.

    Args:
        width: width of the sinusoids, independent of the width of the model; even, at least 2.

    Raises:
        PositionError: if width is not valid.

    Example:
        >>> model = Sandwich(StackSpec(dim=8, heads=1, layers=1, max_length=16), width=2)
        >>> model.correlation(model.prepare(Positions.arange(2)), 0)  # (cos 1 - 1) / 8
        tensor([[[[ 0.0000, -0.0575],
                  [-0.0575,  0.0000]]]])
    """

    card = Card(
        paper="Chi et al. 2023",
        link="https://arxiv.org/abs/2212.10356",
        stacks={"causal": "language models"},
        point="relative",
        equation="q_t k_s / sqrt(d_h) + h / (8 i) sum_j cos((t - s) / 10000^{2j/width}), heads i = 1 ... h",
    )

    def __init__(self, spec: StackSpec, *, width: int = 128) -> None:
        super().__init__(spec)
        if width < 2 or width % 2:
            raise PositionError(f"width is {width}; it must be even and at least 2")
        self.width = width

    def prepare(self, positions: Positions) -> DistanceBias | Tensor:
        if consecutive(positions):
            distances = Distances.of(positions, "sandwich")
            return DistanceBias(distances, self._at(distances.values.abs()))
        distance = positions.delta.abs()
        if distance.requires_grad:
            return self._at(distance.flatten()).view(-1, *distance.shape).transpose(0, 1)
        if positions.below is not None:
            values, index = torch.arange(positions.below, device=distance.device), distance
        else:
            values, index = torch.unique(distance, return_inverse=True)
        return self._at(values)[:, index].transpose(0, 1)

    def _at(self, values: Any) -> Tensor:  # as `Tensor.split` is untyped
        """Return the bias at distances (N,), (heads, N)."""
        at = frequencies(self.width, device=values.device)
        products = [
            (part.double()[:, None] * at).cos().sum(-1) for part in values.split(max(_CHUNK // len(at), 1))
        ]
        heads = torch.arange(1, self.spec.heads + 1, dtype=at.dtype, device=at.device) * (8 / self.spec.heads)
        return ((torch.cat(products) - self.width / 2) / heads[:, None]).to(at_least_float32(self.dtype))
