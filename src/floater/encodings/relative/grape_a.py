"""Group Representational Position Encoding: additive, with gates (Zhang et al. 2026, section 4.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.card import Card
from floater.encodings.checks import one_of
from floater.encodings.context import AttentionContext
from floater.encodings.model import PositionModel
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.alibi import slopes
from floater.encodings.spec import StackSpec
from floater.positions import Positions

GATES = ("both", "query", "key")


@register("grape_a")
class GrapeA(PositionModel):
    """Each head lowers the logits in proportion to the distance, by a slope that query and key set.

    Head h of a block adds -m_h softplus(w_h) |t - s| (gate of the query + gate of the key), with the gates
    softplus(v_h q_t / sqrt(d_h)) and softplus(u_h k_s / sqrt(d_h)), u and v learned directions and m the
    slopes of ALiBi (equation 4.6). As in the released code u and v are divided by their norms, and start
    normal with a standard deviation of d_h^-1/2; softplus(w) starts at 1.

    The authors' Transformers normalise queries and keys before the gates read them. The paper is causal; here
    the bias is the same on both sides. Positions may be real.

    Args:
        spec: the stack of blocks.
        gates: "both", "query" or "key": the terms of the slope.

    Raises:
        PositionError: if `gates` is not valid.

    Example:
        >>> model = GrapeA(StackSpec(dim=4, heads=2, layers=1, max_length=16))
        >>> q = torch.zeros(1, 2, 3, 2)  # each gate is softplus(0) = log 2
        >>> bias = model.bias(q, q, AttentionContext(model.prepare(Positions.arange(3)), 0))
        >>> bias[0, 0] / slopes(2)[0].float() / math.log(4)
        tensor([[-0., -1., -2.],
                [-1., -0., -1.],
                [-2., -1., -0.]], grad_fn=<DivBackward0>)
    """

    card = Card(
        paper="Zhang et al. 2026",
        link="https://arxiv.org/abs/2512.07805",
        stacks={"causal": "language models"},
        point="relative",
        equation="q_t k_s / sqrt(d_h) - m softplus(w) |t - s| (softplus(v q_t / sqrt(d_h)) + "
        "softplus(u k_s / sqrt(d_h))), |u| = |v| = 1, m = 2^{-8 i / h}",
        parameters="l * (h + 2 * d)",
    )

    def __init__(self, spec: StackSpec, *, gates: str = "both") -> None:
        super().__init__(spec)
        one_of("gates", gates, GATES)
        shape = spec.layers, spec.heads, 1, spec.dim // spec.heads
        self.slope = nn.Parameter(torch.empty(spec.layers, spec.heads))
        self.query = nn.Parameter(torch.empty(shape)) if gates != "key" else None
        self.key = nn.Parameter(torch.empty(shape)) if gates != "query" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.slope, math.log(math.e - 1))
        for direction in (self.query, self.key):
            if direction is not None:
                nn.init.normal_(direction, std=direction.shape[-1] ** -0.5)

    def prepare(self, positions: Positions) -> Tensor:
        """Return the distances, (batch or 1, 1, T, S)."""
        return positions.delta.abs()[:, None].to(at_least_float32(self.dtype))

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[Tensor]) -> Tensor:
        far, layer = context.state, context.layer
        slope = F.softplus(self.slope[layer]) * slopes(self.spec.heads, far.device)
        gate = far.new_zeros(())
        if self.query is not None:
            gate = gate + self.gate(q, self.query[layer])[..., None]
        if self.key is not None:
            gate = gate + self.gate(k, self.key[layer])[..., None, :]
        return -slope.to(far.dtype)[:, None, None] * far * gate

    def gate(self, x: Tensor, direction: Tensor) -> Tensor:
        """Return the gates of queries or keys (batch, heads, N, head_dim), (batch, heads, N)."""
        dtype = at_least_float32(x.dtype)
        unit = F.normalize(direction.to(dtype), dim=-1, eps=1e-6)
        return F.softplus((x.to(dtype) * unit).sum(-1) * self.scale(x.shape[-1]))
