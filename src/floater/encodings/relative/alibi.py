"""Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation.

Press, Smith, Lewis 2022, section 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from floater.encodings.card import Card
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.bias import DistanceBias, PositionBias, bias_of_distance
from floater.encodings.timed import time_differences
from floater.flow.precision import wide_dtype
from floater.positions import Positions


def slopes(heads: int, device: torch.device | None = None) -> Tensor:
    """Return 2^(-8 m / heads), m = 1, ..., heads; completed from those of twice as many heads if heads is not
    a power of two.

    They are computed on their device: a CUDA graph captures no copy from the CPU.

    Example:
        >>> slopes(3).tolist()
        [0.0625, 0.00390625, 0.25]
    """
    power = 2 ** int(math.log2(heads))
    count = torch.arange(heads, device=device)
    exponents: Tensor = torch.where(count < power, 2 * count + 2, 2 * (count - power) + 1) * (-4 / power)
    return exponents.to(wide_dtype(exponents.device)).exp2()


@register("alibi")
class ALiBi(PositionBias):
    """Each head lowers the logits in proportion to the distance, with a fixed slope (section 3).

    The paper is causal; here the bias is the same on both sides, -slope |s - t|. For a number of heads that
    is not a power of two, the slopes are those of the released code. Positions may be real. On a CPU the
    weights of far keys are denormal numbers, which are slow; `floater.lab.training.flush_denormals` makes
    them zero.

    Example:
        >>> from floater.encodings.spec import StackSpec
        >>> model = ALiBi(StackSpec(dim=8, heads=1, layers=1, max_length=16))
        >>> (model.correlation(model.prepare(Positions.arange(2)), 0) * 256).tolist()
        [[[[-0.0, -1.0], [-1.0, -0.0]]]]
    """

    card = Card(
        paper="Press et al. 2022",
        link="https://arxiv.org/abs/2108.12409",
        stacks={"causal": "language models"},
        point="relative",
        models="BLOOM, MPT, Falcon-RW",
        equation="q_t k_s / sqrt(d_h) - m |s - t|, m = 2^{-8 i / h}",
    )

    def prepare(self, positions: Positions) -> DistanceBias | Tensor:
        return bias_of_distance(positions, "alibi", self._sloped)

    def prepare_times(self, positions: Positions) -> None:
        """Return nothing: the slopes are fixed; see `TimedBias`."""

    def bias_at(self, query: Tensor, key: Tensor, state: None, layer: int) -> Tensor:
        """Return the bias of times of each head; see `TimedBias`."""
        return self._sloped(time_differences(query, key, self.dtype))

    def _sloped(self, delta: Tensor) -> Tensor:
        far = delta.abs().to(at_least_float32(self.dtype))
        return -far * slopes(self.spec.heads, far.device).to(far.dtype)[:, None, None]
