"""Functional Interpolation for Relative Positions Improves Long Context Transformers (Li et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from floater.encodings.card import Card
from floater.encodings.checks import at_least_one
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.bias import DistanceBias, PositionBias
from floater.encodings.relative.distances import Distances
from floater.encodings.spec import StackSpec
from floater.encodings.terms import AttentionTerms
from floater.encodings.timed import time_differences
from floater.positions import Positions


def piecewise(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    """Apply a network with one layer of ReLU to scalars, by the pieces in which it is linear.

    It computes one number per head for each scalar, never one per hidden unit.

    Args:
        x: (...).
        weight: (width,) weights of the hidden units.
        bias: (width,) biases of the hidden units.
        out: (heads, width) weights of the output.

    Returns:
        (heads, ...): out relu(weight x + bias).

    Example:
        >>> x, (weight, bias), out = torch.randn(5), torch.randn(2, 8), torch.randn(3, 8)
        >>> wanted = out @ (weight[:, None] * x + bias[:, None]).relu()
        >>> torch.allclose(piecewise(x, weight, bias, out), wanted, atol=1e-5)
        True
    """
    slopes, offsets, piece = pieces(x, weight, bias, out)
    return slopes[:, piece] * x + offsets[:, piece]


def pieces(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the slope and the offset of each head in each piece, (heads, width + 1), and the pieces of x.

    Arguments as of `piecewise`.
    """
    with torch.no_grad():
        corners, order = torch.where(weight == 0, 0.0, -bias / weight).sort()
        after = torch.arange(len(weight) + 1, device=x.device)[:, None] > order.argsort()
        active = torch.where(weight == 0, bias > 0, after == (weight > 0)).to(out.dtype)
        piece = torch.bucketize(x.detach().to(corners.dtype).contiguous(), corners)
    # sums, as autocast rounds what goes into a matrix product
    slopes, offsets = (((out * unit)[:, None] * active).sum(-1) for unit in (weight, bias))
    return slopes, offsets, piece


@dataclass(frozen=True)
class FireState:
    """State of a forward pass, shared by the blocks.

    Args:
        positions: positions of queries and keys.
        distances: distances of queries and keys; None for real positions.
        near: for each block, whether all positions are below its threshold, so that its bias depends on
            distances alone.
        shared: the bias of all blocks, if they share one function.
    """

    positions: Positions
    distances: Distances | None
    near: tuple[bool, ...]
    shared: DistanceBias | Tensor | None = None


@register("fire")
class Fire(PositionBias):
    """A learned function of the distance relative to the query's position (FIRE).

    b = f(psi(t - s) / psi(max(L, t))) with psi(x) = log(c x + 1) and f an MLP from 1 to `width` ReLU units to
    the heads: as the distance grows with the position, the input stays between 0 and 1 at any length
    (progressive interpolation). Each block learns f, c and L, the last as a multiple of `threshold`;
    `share_layers` is the paper's FIRE-S.

    Initialisation and numbers are those of the released module: c = 0.1, weights and hidden biases of torch's
    linear layers, eps = 1e-6 beside psi(max(L, t)). It has no output bias, which would add one number to
    all logits of a query, which the softmax would cancel.

    The paper is causal. Here a key after its query has a negative sign, and the later of the two positions
    normalises: f(-psi(s - t) / psi(max(L, s))). A causal stack uses the paper's half only. It
    has no maximum length and takes real positions.

    Args:
        width: hidden units of f.
        threshold: initial L, positive; the paper trains with 2,048 tokens.
        share_layers: one function for all blocks.

    Raises:
        PositionError: if an option is not valid.

    Example:
        >>> model = Fire(StackSpec(dim=8, heads=2, layers=3, max_length=16))
        >>> model.correlation(model.prepare(Positions.arange(5)), 1).shape
        torch.Size([1, 2, 5, 5])
    """

    card = Card(
        paper="Li et al. 2024",
        link="https://arxiv.org/abs/2310.04418",
        stacks={"causal": "language models"},
        point="relative",
        equation="q_t k_s / sqrt(d_h) + f(psi(t - s) / psi(max(L, t))), psi(x) = log(c x + 1); "
        "later keys: f(-psi(s - t) / psi(max(L, s)))",
        parameters="(2 * width + width * h + 2) * l",
        exceptions={"shift": "past the threshold a distance is divided by the position of its query"},
        pair_matrix="for positions beyond the threshold, where the bias depends on the query, too",
    )

    def __init__(
        self, spec: StackSpec, *, width: int = 32, threshold: float = 512.0, share_layers: bool = False
    ) -> None:
        super().__init__(spec)
        at_least_one(width=width)
        if not threshold > 0:
            raise PositionError(f"threshold is {threshold}; it must be positive")
        self.threshold = threshold
        blocks = 1 if share_layers else spec.layers
        self.weight, self.hidden_bias = (nn.Parameter(torch.empty(blocks, width)) for _ in range(2))
        self.out = nn.Parameter(torch.empty(blocks, spec.heads, width))
        self.c, self.multiplier = (nn.Parameter(torch.empty(blocks)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in (self.weight, self.hidden_bias):
            nn.init.uniform_(parameter, -1.0, 1.0)  # one input
        nn.init.uniform_(self.out, -(self.out.shape[-1] ** -0.5), self.out.shape[-1] ** -0.5)
        nn.init.constant_(self.c, 0.1)
        nn.init.ones_(self.multiplier)

    def prepare(self, positions: Positions) -> FireState:
        distances, near = None, (False,) * len(self.c)
        if not positions.query.is_floating_point():
            distances = Distances.of(positions, "fire")
            if not (torch.compiler.is_compiling() or self.c.is_meta):  # where learned limits cannot be read
                occurring = torch.cat([positions.query.flatten(), positions.key.flatten()])
                last = occurring.max() if len(occurring) else 0
                near = tuple((last <= self.multiplier.detach().abs() * self.threshold).tolist())
        state = FireState(positions, distances, near)
        return replace(state, shared=self.block_bias(state, 0)) if len(self.c) == 1 else state

    def block_bias(self, state: FireState, block: int) -> DistanceBias | Tensor:
        """Return the bias of a block, of the distance or (batch or 1, heads, T, S)."""
        dtype = at_least_float32(self.c.dtype)  # half precision has no odd number above 2,048
        limit = self.multiplier[block].to(dtype).abs() * self.threshold
        if state.distances is not None and state.near[block]:
            return DistanceBias(state.distances, self.function(-state.distances.values, limit, block))
        query, key = state.positions.query[:, :, None], state.positions.key[:, None]
        limit = torch.maximum(torch.maximum(query, key).to(dtype), limit)
        return self.function(query - key, limit, block).transpose(0, 1)

    def function(self, back: Tensor, limit: Tensor, block: int) -> Tensor:
        """Return f at query - key (...), normalised by the distance `limit`, in whose dtype: (heads, ...)."""
        return piecewise(*self._network(back, limit, block))

    def _network(self, back: Tensor, limit: Tensor, block: int) -> tuple[Tensor, ...]:
        """Return the input of f, signed and normalised, and its weights."""
        back, c = back.to(limit.dtype), self.c[block].to(limit.dtype)
        share = torch.log1p((c * back).abs()) / (torch.log1p((c * limit).abs()) + 1e-6)
        parameters = (p[block].to(limit.dtype) for p in (self.weight, self.hidden_bias, self.out))
        return back.sign() * share, *parameters

    def prepare_times(self, positions: Positions) -> None:
        """Return nothing: f has a closed form; see `TimedBias`."""

    def bias_at(self, query: Tensor, key: Tensor, state: None, layer: int) -> Tensor:
        """Return the bias of times of each head; see `TimedBias`."""
        block = layer if len(self.c) > 1 else 0
        back = time_differences(query, key, self.dtype).neg()
        limit = torch.maximum(
            torch.maximum(query[..., None].to(back.dtype), key[..., None, :].to(back.dtype)),
            self.multiplier[block].to(back.dtype).abs() * self.threshold,
        )
        x, *parameters = self._network(back, limit, block)
        slopes, offsets, piece = pieces(x, *parameters)
        head = torch.arange(len(slopes), device=piece.device)[:, None, None]
        return slopes[head, piece] * x + offsets[head, piece]

    def added(self, state: FireState, layer: int) -> DistanceBias | Tensor:
        return self.block_bias(state, layer) if state.shared is None else state.shared

    def attention_terms(self, q: Tensor, k: Tensor, context: AttentionContext[Any]) -> AttentionTerms | None:
        # beyond the threshold the bias is a matrix, which is computed for `bias` only
        return (
            super().attention_terms(q, k, context)
            if context.state.near[context.layer % len(context.state.near)]
            else None
        )
