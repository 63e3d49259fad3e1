"""Multi-Time Attention Networks for Irregularly Sampled Time Series (Shukla and Marlin 2021, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.card import Card
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.precise import Precise, at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.bias import product_terms
from floater.encodings.spec import StackSpec
from floater.encodings.terms import AttentionTerms
from floater.flow.precision import without_autocast
from floater.positions import Positions


@register("mtan")
class MTAN(Precise):
    """Attention by learned features of the time: one is linear, the others are sines.

    phi(t) = [w_0 t + a_0, sin(w_1 t + a_1), ...]; a head of a block attends by its part of
    (W phi(t) + b)^T (V phi(s) + c) / sqrt(width / h). In the paper attention depends on times alone;
    `content` adds the products of queries and keys. Each block has its own phi, W and V, in torch's
    initialisation for linear layers, as in the released code; times there are scaled to lie between 0 and 1,
    here in units of max_length.

    Args:
        width: features of the time, a multiple of heads above 1; dim by default.
        content: whether products of queries and keys join the logits.

    Raises:
        PositionError: if width is not valid.

    Example:
        >>> model = MTAN(StackSpec(dim=8, heads=2, layers=1, max_length=16))
        >>> model.features(torch.tensor([[0.0, 2.5]]), 0).shape
        torch.Size([1, 2, 8])
    """

    card = Card(
        paper="Shukla and Marlin 2021",
        link="https://arxiv.org/abs/2101.10318",
        stacks={"encoder": "time series, read at other times at once by a second module"},
        point="absolute",
        equation="(W phi(t) + b)^T (V phi(s) + c) / sqrt(d_h), phi(t) = [w_0 t + a_0, sin(w_i t + a_i)]",
        parameters="l * (2 * d + 2 * d * (d + 1))",
    )

    reads_content = False

    def __init__(self, spec: StackSpec, *, width: int | None = None, content: bool = False) -> None:
        super().__init__(spec)
        width = spec.dim if width is None else width
        if width < 2 or width % spec.heads:
            raise PositionError(f"width is {width}; it must be a multiple of heads {spec.heads}, at least 2")
        self.content, dtype = content, at_least_float32()
        self.frequency, self.phase = (
            nn.Parameter(torch.empty(spec.layers, width, dtype=dtype)) for _ in range(2)
        )
        self.weight = nn.Parameter(torch.empty(spec.layers, 2, width, width, dtype=dtype))
        self.feature_bias = nn.Parameter(torch.empty(spec.layers, 2, width, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in (self.frequency, self.phase):
            nn.init.uniform_(parameter, -1.0, 1.0)  # one input
        bound = self.weight.shape[-1] ** -0.5
        for parameter in (self.weight, self.feature_bias):
            nn.init.uniform_(parameter, -bound, bound)

    def scale(self, head_dim: int) -> float:
        return super().scale(head_dim) if self.content else 0.0

    def features(self, times: Tensor, layer: int) -> Tensor:
        """Return phi in a block, (batch or 1, T, width) for times (batch or 1, T)."""
        frequency, phase = self.frequency[layer].double(), self.phase[layer].double()
        angle = times.double()[..., None] / self.spec.max_length * frequency + phase
        return torch.cat([angle[..., :1], angle[..., 1:].sin()], -1).to(self.frequency.dtype)

    def prepare(self, positions: Positions) -> Positions:
        return positions

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[Positions]) -> Tensor:
        query, key = self.projected(q, context.state, context.layer)
        return query @ key.mT

    def attention_terms(self, q: Tensor, k: Tensor, context: AttentionContext[Positions]) -> AttentionTerms:
        return product_terms(q, k, self.scale(q.shape[-1]), *self.projected(q, context.state, context.layer))

    def projected(self, q: Tensor, state: Positions, layer: int) -> tuple[Tensor, Tensor]:
        """Return the scaled W phi(t) + b and V phi(s) + c of each head, (batch or 1, heads, T or S, D)."""
        heads = self.spec.heads
        with without_autocast(q):  # half precision has three digits of a time
            times = [state.query] if state.key is state.query else [state.query, state.key]
            features = [self.features(each, layer) for each in times]
            parts = [
                F.linear(feature, weight, bias)
                for feature, weight, bias in zip(
                    (features[0], features[-1]), self.weight[layer], self.feature_bias[layer], strict=True
                )
            ]
        query, key = (
            part.view(*part.shape[:2], heads, part.shape[-1] // heads).transpose(1, 2) for part in parts
        )
        return query * float(query.shape[-1] ** -0.5), key
