"""Biases of attention that depend on positions alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeGuard

import torch
from torch import Tensor, nn

from floater.encodings.card import Point
from floater.encodings.context import AttentionContext
from floater.encodings.model import PositionModel
from floater.encodings.relative.distances import Distances, consecutive, spacing
from floater.encodings.spec import StackSpec
from floater.encodings.terms import AttentionTerms
from floater.flow.autograd import unseen_by_checkpoints
from floater.positions import Positions


class PairBias:
    """A bias of each pair of positions, whose matrix is computed on demand."""

    _matrix: Tensor | None = None

    @property
    def matrix(self) -> Tensor:
        """Return the bias of each pair, (batch or 1, heads or 1, T, S), the same tensor for all blocks."""
        if self._matrix is None:  # not functools.cached_property, whose lock torch.compile does not support
            with ExitStack() as stack:
                if not torch.compiler.is_compiling():
                    # the first block alone computes it; transforms of torch.func have no checkpoints
                    with suppress(RuntimeError):
                        stack.enter_context(unseen_by_checkpoints())
                self._matrix = self._whole()
        return self._matrix

    def _whole(self) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define _whole")

    def terms(self, q: Tensor, k: Tensor, scale: float) -> AttentionTerms | None:
        """Return the bias without its matrix, for logits scale (q_t k_s); None if there is no such form."""
        raise NotImplementedError(f"{type(self).__name__} must define terms")


@dataclass(eq=False)
class DistanceBias(PairBias):
    """A bias of the distance.

    Args:
        distances: the distances that occur.
        table: the bias at each of them, (heads or 1, N).

    Example:
        >>> distances = Distances.of(Positions.arange(2), "alibi")
        >>> DistanceBias(distances, -distances.values[None].abs()).matrix
        tensor([[[[ 0, -1],
                  [-1,  0]]]])
    """

    distances: Distances
    table: Tensor

    def _whole(self) -> Tensor:
        return self.distances.plane(self.table)

    def terms(self, q: Tensor, k: Tensor, scale: float) -> AttentionTerms | None:
        return AttentionTerms(bias=self.table) if self.distances.index is None else None


@dataclass(eq=False)
class ProductBias(PairBias):
    """A bias a_t b_s of positions t and s, plus one of the distance.

    Args:
        query: a, (batch or 1, heads or 1, T, D).
        key: b, (batch or 1, heads or 1, S, D).
        more: the bias of the distance.

    Example:
        >>> a = torch.tensor([[[[1.0], [2.0]]]])
        >>> ProductBias(a, a).matrix
        tensor([[[[1., 2.],
                  [2., 4.]]]])
    """

    query: Tensor
    key: Tensor
    more: DistanceBias | None = None

    def _whole(self) -> Tensor:
        product = self.query @ self.key.mT
        return product if self.more is None else product + self.more.matrix

    def terms(self, q: Tensor, k: Tensor, scale: float) -> AttentionTerms | None:
        if self.more is not None and self.more.distances.index is not None:
            return None
        return product_terms(
            q, k, scale, self.query, self.key, None if self.more is None else self.more.table
        )


def product_terms(
    q: Tensor, k: Tensor, scale: float, query: Tensor, key: Tensor, bias: Tensor | None = None
) -> AttentionTerms:
    """Return logits scale (q_t k_s) + a_t b_s as one product, of vectors as wide as both.

    Args:
        q: (batch, heads, T, head_dim).
        k: (batch, heads, S, head_dim).
        scale: factor of q_t k_s; 0 leaves that product out.
        query: a, (batch or 1, heads or 1, T, D).
        key: b, (batch or 1, heads or 1, S, D).
        bias: a bias of the distance, (heads or 1, T + S).

    Example:
        >>> one = torch.ones(1, 1, 2, 3)
        >>> product_terms(one, one, 0.5, one[..., :1], one[..., :1]).content[0].shape
        torch.Size([1, 1, 2, 4])
    """
    wide = [y.to(x.dtype).expand(*x.shape[:3], -1) for x, y in ((q, query), (k, key))]
    if scale:
        wide = [torch.cat([x, y], -1) for x, y in zip((q * scale, k), wide, strict=True)]
    return AttentionTerms(content=(wide[0], wide[1]), scale=1.0, bias=bias)


def bias_of_distance(
    positions: Positions, name: str, added: Callable[[Tensor], Tensor]
) -> DistanceBias | Tensor:
    """Return a bias of the distance: computed once per distance if positions are evenly spaced, else for each
    pair.

    Args:
        positions: positions of queries and keys, whole or real.
        name: name of the position model, for error messages.
        added: the bias (..., heads, 1, N) or (..., heads, T, S) at distances (N,) or (..., 1, T, S).

    Example:
        >>> real = Positions.times(torch.tensor([[0.0, 0.5], [0.0, 2.0]]))
        >>> bias_of_distance(real, "alibi", lambda delta: -delta.abs())[1].tolist()
        [[[-0.0, -2.0], [-2.0, -0.0]]]
    """
    if consecutive(positions):
        distances = Distances.of(positions, name)
        return DistanceBias(distances, added(distances.values)[:, 0])
    if (step := spacing(positions)) is not None:
        distances = Distances.from_spacing(positions, step)
        return DistanceBias(distances, added(distances.values)[:, 0])
    return added(positions.delta[:, None])


class PositionBias(PositionModel):
    """A bias of the logits that depends on positions alone; subclasses define it in `added`.

    `floater.encodings.untied.reset` can untie [CLS] from any of them.
    """

    reads_content = False

    def added(self, state: Any, layer: int) -> PairBias | Tensor:
        """Return the bias of a block, (batch or 1, heads or 1, T, S) if it is not a `PairBias`.

        By default it is the result of `prepare`, for all blocks.
        """
        if not isinstance(state, PairBias | Tensor):
            raise NotImplementedError(f"{type(self).__name__} must define added")
        return state

    def correlation(self, state: Any, layer: int) -> Tensor:
        """Return the bias of a block, (batch or 1, heads or 1, T, S)."""
        added = self.added(state, layer)
        return added.matrix if isinstance(added, PairBias) else added

    def attention_terms(self, q: Tensor, k: Tensor, context: AttentionContext[Any]) -> AttentionTerms | None:
        added = self.added(context.state, context.layer)
        return None if isinstance(added, Tensor) else added.terms(q, k, self.scale(q.shape[-1]))

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[Any]) -> Tensor | None:
        return self.correlation(context.state, context.layer)


def adds_bias_alone(model: PositionModel) -> TypeGuard[PositionBias]:
    """Return whether a model only adds a bias that depends on positions alone.

    Example:
        >>> from floater import build
        >>> [adds_bias_alone(build(name, dim=8, heads=2, layers=1, max_length=4)) for name in ("t5", "shaw")]
        [True, False]
    """
    other = ("embed", "block", "inputs", "projection_bias", "qkv", "logits", "weights", "mask", "value_bias")
    return isinstance(model, PositionBias) and not model.overrides(*other)


def describe_as(model: PositionModel, inner: PositionModel) -> None:
    """Describe an encoding by the one that it wraps: exceptions, needed structure, source of positions.

    Example:
        >>> from floater import build
        >>> build("dape", dim=8, heads=2, layers=1, max_length=4, model="dufter_absolute").card.point
        'absolute'
    """
    if not hasattr(inner, "card"):
        return  # it does not act at this site
    point: Point = inner.card.point if model.card.point == "relative" else model.card.point
    model.card = replace(model.card, point=point, exceptions=inner.card.exceptions)
    model.derives_positions = inner.derives_positions
    if hasattr(inner, "needs"):
        model.needs = inner.needs


class DistanceTable(PositionBias):
    """A free scalar b(s - t) per distance, by default for every head of every block.

    Bounded: a distance past the table is an error.

    Args:
        spec: the stack of blocks; distances stay below max_length.
        share_heads: one scalar for all heads.
        share_layers: one table for all blocks.
    """

    name: str
    bounded = True
    half_read: ClassVar[Mapping[str, int]] = {"table": -1}

    def __init__(self, spec: StackSpec, *, share_heads: bool, share_layers: bool) -> None:
        super().__init__(spec)
        layers, heads = 1 if share_layers else spec.layers, 1 if share_heads else spec.heads
        self.table = nn.Parameter(torch.empty(layers, heads, 2 * spec.max_length - 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=0.02)

    def prepare(self, positions: Positions) -> Distances:
        return Distances.of(positions, self.name, self.spec.max_length)

    def added(self, state: Distances, layer: int) -> DistanceBias | Tensor:
        table = self.table[layer if len(self.table) > 1 else 0]
        return DistanceBias(state, state.rows(table, self.spec.max_length - 1, 1))
