"""CrossFormer: a bias from a small network of the distance (Wang et al. 2022, section 3.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.card import Card
from floater.encodings.checks import at_least_one
from floater.encodings.registry import register
from floater.encodings.relative.bias import DistanceBias, PositionBias
from floater.encodings.relative.distances import Distances
from floater.encodings.relative.knots import interpolate, knots
from floater.encodings.spec import StackSpec
from floater.encodings.timed import time_differences
from floater.flow.precision import without_autocast
from floater.positions import Positions

_FAR = 2.0**20  # times of a clock beyond it have the bias continued in a straight line


@register("dynamic_bias")
class DynamicBias(PositionBias):
    """A network of the signed distance gives each head's bias, for all blocks (dynamic position bias).

    f(x) with x = t - s, or sign(x) log(1 + |x|), and f `depth` layers of `width` SiLU units in torch's
    initialisation, as in x-transformers, which has the logarithm as an option. CrossFormer introduced the
    network: three layers of a sixteenth of the model's width with layer norms and ReLU, of two coordinates,
    one network for each block, whose weights start with a standard deviation of 0.02. The logarithm is Swin
    Transformer V2's (Liu et al. 2022, section 3.3). It has no output bias, which the softmax would cancel.
    Positions may be real.

    Args:
        width: units of a layer; a quarter of the model's width by default.
        depth: hidden layers, at least 1.
        log_distance: whether f reads the logarithm.

    Raises:
        PositionError: if width or depth is not valid.

    Example:
        >>> model = DynamicBias(StackSpec(dim=8, heads=2, layers=1, max_length=16))
        >>> model.correlation(model.prepare(Positions.arange(3)), 0).shape
        torch.Size([1, 2, 3, 3])
    """

    card = Card(
        paper="Wang et al. 2022",
        link="https://arxiv.org/abs/2108.00154",
        stacks={"encoder": "images"},
        point="relative",
        models="CrossFormer",
        equation="q_t k_s / sqrt(d_h) + f(sign(t - s) log(1 + |t - s|)), f an MLP",
        parameters="2 * (d // 4) + (depth - 1) * (d // 4 + 1) * (d // 4) + (d // 4) * h",
    )

    def __init__(
        self, spec: StackSpec, *, width: int | None = None, depth: int = 2, log_distance: bool = True
    ) -> None:
        super().__init__(spec)
        width = max(spec.dim // 4, 1) if width is None else width
        at_least_one(width=width, depth=depth)
        self.log_distance = log_distance
        self.layers = nn.ModuleList(nn.Linear(width if n else 1, width) for n in range(depth))
        self.out = nn.Linear(width, spec.heads, bias=False)

    def reset_parameters(self) -> None:
        for linear in (*self.layers, self.out):
            linear.reset_parameters()

    def prepare(self, positions: Positions) -> DistanceBias | Tensor:
        if positions.query.is_floating_point():
            return self.function(-positions.delta).transpose(0, 1)
        distances = Distances.of(positions, "dynamic_bias")
        return DistanceBias(distances, self.function(-distances.values))

    def prepare_times(self, positions: Positions) -> Tensor:
        """Return the bias at knots before and after the query; see `TimedBias` and `interpolate`."""
        at = knots(_FAR, positions.query.device)
        return self.function(torch.stack([at, -at])).transpose(0, 1)

    def bias_at(self, query: Tensor, key: Tensor, state: Tensor, layer: int) -> Tensor:
        """Return the bias of times of each head; see `TimedBias`."""
        return interpolate(state, time_differences(query, key, self.dtype))

    def function(self, back: Tensor) -> Tensor:
        """Return the bias at query - key (...), (heads, ...)."""
        dtype = torch.promote_types(self.out.weight.dtype, torch.float32)
        x = back.to(dtype)[..., None]
        if self.log_distance:
            x = x.sign() * x.abs().log1p()
        # half precision has no odd distances above 2,048
        with without_autocast(x):
            for linear in self.layers:
                assert isinstance(linear, nn.Linear)
                x = F.silu(F.linear(x, linear.weight.to(dtype), linear.bias.to(dtype)))
            return F.linear(x, self.out.weight.to(dtype)).movedim(-1, 0)
