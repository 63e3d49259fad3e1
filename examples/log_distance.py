"""Rivals of `floater_relative` for attribution.yaml: without the equation, and without directions."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from floater.encodings import Card, StackSpec, register
from floater.encodings.relative.floater_relative import BiasVectors, FloaterRelative
from floater.flow import FlowVectors
from floater.positions import Positions


@register("distance_mlp")
class DistanceMLP(FloaterRelative):
    """Compute psi(u) by two layers instead of a differential equation.

    psi(u) = W2 tanh(W1 s + u1 u + b1) + u2 u + b2: the flow's field, evaluated once at u and the start s of a
    block and direction. Parameters are those of `floater_relative`, in number and shape; the layers start as
    PyTorch's linear layers do. Biases of real distances are interpolated between `knots`, as the flow's are.

    Args:
        spec: the stack of blocks.
        options: those of `floater_relative`.

    Example:
        >>> from floater.encodings import AttentionContext
        >>> from floater.positions import Positions
        >>> model = DistanceMLP(StackSpec(dim=8, heads=2, layers=3, max_length=16))
        >>> model.correlation(model.prepare(Positions.arange(4)), 0).shape
        torch.Size([1, 2, 4, 4])
    """

    card = Card(
        paper="an example of this library",
        link="https://github.com",
        point="relative",
        equation="q_t k_s / sqrt(d_h) + w_h f(u), f an MLP, u = log(1 + min(|s - t|, clip))",
        parameters="2 * width * (width + 2) + 2 * l * width * (1 + h)",
        exceptions={"rows": "b2 shifts all logits of a causal row alike; it is kept for equal size"},
    )

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.baked is None:
            for linear in self.flow.field.children():
                linear.reset_parameters()

    def prepare(self, positions: Positions) -> Any:
        if not positions.query.is_floating_point() or self.clip == math.inf:
            return super().prepare(positions)
        query, key, tables = positions.query[:, None], positions.key[:, None], self.prepare_times(positions)
        return torch.stack([self.bias_at(query, key, tables, layer) for layer in range(self.spec.layers)])

    def added(self, state: Any, layer: int) -> Any:
        return state[layer] if isinstance(state, Tensor) else super().added(state, layer)

    def _solved(self, u: Tensor, delta: Tensor) -> BiasVectors:
        times = F.pad(u.reshape(-1, 1), (0, 0, 0, 1), value=self.span)
        starts = self.flow.start.flatten(0, 1)
        rows = [self.flow.field(times, start.expand(len(times), -1)) for start in starts]
        keys = {key: row for row, key in enumerate(product(self.flow.blocks, self.flow.names))}
        vectors = FlowVectors(rows, slice(None), keys, starts.dtype)
        return BiasVectors(vectors.projected(self.readout), delta.reshape(-1, 1), tuple(u.shape))


@register("floater_symmetric")
class FloaterSymmetric(FloaterRelative):
    """Give keys before and after the query the same flow: `floater_relative` of one direction.

    Args:
        spec: the stack of blocks.
        width: width of psi.

    Example:
        >>> from floater.positions import Positions
        >>> model = FloaterSymmetric(StackSpec(dim=8, heads=1, layers=1, max_length=16))
        >>> bias = model.correlation(model.prepare(Positions.arange(3)), 0)[0, 0]
        >>> bool((bias == bias.T).all())
        True
    """

    card = Card(
        paper="an example of this library",
        link="https://github.com",
        point="relative",
        equation="q_t k_s / sqrt(d_h) + w_h psi(u), as floater_relative with one start a block",
        parameters="2 * width * (width + 2) + l * width * (1 + h)",
    )

    def __init__(self, spec: StackSpec, *, width: int = 32) -> None:
        super().__init__(replace(spec, causal=True), width=width)
        self.spec = spec
