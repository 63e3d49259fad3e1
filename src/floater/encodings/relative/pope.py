"""PoPE: Decoupling the "What" and "Where" With Polar Coordinate Positional Embeddings.

Gopalakrishnan, Csordas, Schmidhuber, Mozer 2025.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.card import Card
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import QKV, PositionModel, Stage, scale_as_projected
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.waves import Waves
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("pope")
class PoPE(PositionModel):
    """Content is the magnitude of a component and position its angle, so that they do not interact.

    Component c of a query becomes softplus(q_c) e^{i t w_c}, that of a key softplus(k_c) e^{i (s w_c +
    delta_c)} with w_c = base^(-c / d_h); the logit is the real part of their product. With rotary positions
    the angle of a pair also depends on content; here every component has a frequency of its own, and its
    angle depends on the position alone. delta belongs to a head of a block and starts at zero; the paper
    keeps it within [-2 pi, 0], which contains every angle, so it is not clamped here. Queries and keys become
    twice as wide, the scale stays. Positions may be real.

    Args:
        base: base of the frequencies, above 1.

    Raises:
        PositionError: if base is not above 1.

    Example:
        >>> model = PoPE(StackSpec(dim=2, heads=1, layers=1, max_length=16))
        >>> x = torch.zeros(1, 2, 1, 2)
        >>> q, k, _ = model.qkv(x, x, x, AttentionContext(model.prepare(Positions.arange(2)), 0))
        >>> (q[0, 1, 0] @ k[0, 0, 0]).item()  # log(2)^2 (cos 1 + cos 0.01)
        0.7400...
    """

    card = Card(
        paper="Gopalakrishnan et al. 2025",
        link="https://arxiv.org/abs/2509.10534",
        stacks={"causal": "language models, music, genomes"},
        point="relative",
        equation="sum_c softplus(q_{t,c}) softplus(k_{s,c}) cos((s - t) w_c + delta_c) / sqrt(d_h)",
        parameters="l * d",
    )

    stage = Stage.WIDEN
    reads_components = True
    scale = scale_as_projected

    def __init__(self, spec: StackSpec, *, base: float = 10000.0) -> None:
        super().__init__(spec)
        if not base > 1:
            raise PositionError(f"base is {base}; it must be above 1")
        self.base = base
        self.delta = nn.Parameter(torch.empty(spec.layers, spec.heads, spec.dim // spec.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.delta)

    def prepare(self, positions: Positions) -> tuple[Tensor, Tensor]:
        width = self.delta.shape[-1]
        at = self.base ** (-torch.arange(width, dtype=torch.float64, device=positions.query.device) / width)
        waves = Waves.of(positions.query, at, torch.float64)
        return waves.sin.transpose(1, 2), waves.cos.transpose(1, 2)  # (batch or 1, T, 1, head_dim)

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[tuple[Tensor, Tensor]]) -> QKV:
        dtype = at_least_float32(q.dtype)
        sin, cos = (part.to(dtype) for part in context.state)
        shift = self.delta[context.layer].to(dtype)
        # sin and cos of s w + delta, whose angle may be too large for single precision
        sin_k = sin * shift.cos() + cos * shift.sin()
        cos_k = cos * shift.cos() - sin * shift.sin()
        return polar(q, sin, cos), polar(k, sin_k, cos_k), v


def polar(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Return (softplus(x) cos, softplus(x) sin): (..., n) gives (..., 2 n).

    Example:
        >>> polar(torch.tensor([0.0]), torch.tensor([0.0]), torch.tensor([1.0]))
        tensor([0.6931, 0.0000])
    """
    length = F.softplus(x.to(sin.dtype))
    return torch.cat([length * cos, length * sin], -1).to(x.dtype)
