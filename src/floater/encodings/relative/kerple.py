"""KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation (Chi et al. 2022)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from floater.encodings.card import Card
from floater.encodings.checks import one_of
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.bias import DistanceBias, PositionBias
from floater.encodings.relative.distances import Distances
from floater.encodings.spec import StackSpec
from floater.encodings.timed import time_differences
from floater.positions import Positions

_LEAST = 0.01  # the released code keeps every parameter at or above it
_MOST = {"log": torch.inf, "power": 2.0}  # and r2 at or below this
_INITIAL = {"log": (2.0, 1.0), "power": (1.0, 2.0)}  # r1 and r2 start uniform between 0 and these


class _Confined(torch.autograd.Function):
    """Values clamped between two bounds, with gradients that lead back from beyond a bound.

    The released code writes the clamped values into the parameters at each forward pass. Here a forward pass
    changes no parameter: one beyond a bound counts as the bound and can only move towards it.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, clamped: Tensor) -> Tensor:
        return clamped.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), (x, clamped) = gradients, ctx.saved_tensors
        away = ((x < clamped) & (gradient > 0)) | ((x > clamped) & (gradient < 0))
        return gradient.masked_fill(away, 0.0), None


def _confined(x: Tensor, most: float) -> Tensor:
    confined: Tensor = _Confined.apply(x, x.detach().clamp(_LEAST, most))  # type: ignore[no-untyped-call]
    return confined


@register("kerple")
class Kerple(PositionBias):
    """A kernel of the distance d in each head, with two learned positive numbers r1 and r2.

    "log" adds -r1 log(1 + r2 d), "power" -r1 d^r2 with r2 at most 2. All blocks share the numbers, and they
    start uniform in (0, 2) and (0, 1) for "log", in (0, 1) and (0, 2) for "power", as in the released code,
    which keeps each at or above 0.01. r2 = 1 in "power" is ALiBi with learned slopes.

    The paper is causal; here the bias is the same on both sides, as that of `alibi`. There is no maximum
    length, and positions may be real.

    Args:
        kind: "log", the better one in the paper, or "power".
        share_layers: one pair of numbers per head for all blocks; else one for each block.

    Raises:
        PositionError: if kind is not valid.

    Example:
        >>> model = Kerple(StackSpec(dim=8, heads=1, layers=3, max_length=16))
        >>> _ = nn.init.constant_(model.r1, 2.0), nn.init.constant_(model.r2, 1.0)
        >>> model.correlation(model.prepare(Positions.arange(3)), 0)[0, 0, 0].exp()  # 1 / (1 + d)^2
        tensor([1.0000, 0.2500, 0.1111], grad_fn=<ExpBackward0>)
    """

    card = Card(
        paper="Chi et al. 2022",
        link="https://arxiv.org/abs/2205.09921",
        stacks={"causal": "language models"},
        point="relative",
        equation="q_t k_s / sqrt(d_h) - r1 log(1 + r2 |s - t|), or - r1 |s - t|^r2",
        parameters="2 * h",
    )

    def __init__(self, spec: StackSpec, *, kind: str = "log", share_layers: bool = True) -> None:
        super().__init__(spec)
        one_of("kind", kind, tuple(_INITIAL))
        self.kind = kind
        shape = 1 if share_layers else spec.layers, spec.heads
        self.r1, self.r2 = (nn.Parameter(torch.empty(shape)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter, most in zip((self.r1, self.r2), _INITIAL[self.kind], strict=True):
            nn.init.uniform_(parameter, 0.0, most)

    def prepare(self, positions: Positions) -> list[DistanceBias] | list[Tensor]:
        if positions.query.is_floating_point():
            far = positions.delta.abs()[:, None]
            return [self.kernel(far, block) for block in range(len(self.r1))]
        distances = Distances.of(positions, "kerple")
        far = distances.values.abs()
        return [DistanceBias(distances, self.kernel(far, block)) for block in range(len(self.r1))]

    def prepare_times(self, positions: Positions) -> None:
        """Return nothing: the kernel has a closed form; see `TimedBias`."""

    def bias_at(self, query: Tensor, key: Tensor, state: None, layer: int) -> Tensor:
        """Return the bias of times of each head; see `TimedBias`."""
        return self.kernel(time_differences(query, key, self.dtype).abs(), layer if len(self.r1) > 1 else 0)

    def kernel(self, far: Tensor, block: int) -> Tensor:
        """Return the bias at distances (N,) or (batch or 1, heads or 1, T, S).

        Returns:
            (heads, N) or (batch or 1, heads, T, S).
        """
        r1, r2 = (
            _confined(parameter[block], most).view(-1, *[1] * min(far.ndim, 2))
            for parameter, most in ((self.r1, torch.inf), (self.r2, _MOST[self.kind]))
        )
        far = far.to(at_least_float32(r1.dtype))  # half precision has no odd distances above 2,048
        if self.kind == "log":
            kernel = torch.log1p(r2 * far)
        else:  # at 0 the slope of a power below 1 is infinite, and a clock's gradient would not be a number
            kernel = torch.where(far > 0, far.clamp(min=torch.finfo(far.dtype).tiny).pow(r2), 0.0)
        bias: Tensor = -r1 * kernel
        return bias

    def added(self, state: list[DistanceBias] | list[Tensor], layer: int) -> DistanceBias | Tensor:
        return state[layer if len(state) > 1 else 0]
