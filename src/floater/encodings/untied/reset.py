"""Untying [CLS] from positions (Ke, He, Liu 2021, "Rethinking Positional Encoding", section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from floater.encodings.card import Card
from floater.encodings.checks import one_of
from floater.encodings.errors import PositionError
from floater.encodings.registry import build_for, register
from floater.encodings.relative.bias import (
    DistanceBias,
    PairBias,
    PositionBias,
    ProductBias,
    adds_bias_alone,
    describe_as,
    product_terms,
)
from floater.encodings.spec import StackSpec
from floater.encodings.terms import AttentionTerms
from floater.positions import Positions

CLS = ("first", "special", "none")


@dataclass(frozen=True)
class Reset:
    """Masks of the [CLS] tokens among queries (batch or 1, T) and keys (batch or 1, S), True at a [CLS].

    Example:
        >>> reset = Reset.at(Positions.arange(3), "first")
        >>> reset.key.tolist()
        [[True, False, False]]
        >>> reset(torch.zeros(1, 1, 3, 3), torch.tensor([[5.0], [7.0]]))[0, 0]
        tensor([[5., 5., 5.],
                [7., 0., 0.],
                [7., 0., 0.]])
    """

    query: Tensor
    key: Tensor

    @classmethod
    def at(cls, positions: Positions, kind: str) -> Reset | None:
        """Return the [CLS] tokens.

        Args:
            positions: positions of queries and keys; the queries are the last of the keys.
            kind: "first", the token at position 0; "special", those of `Positions.special`; "none".

        Returns:
            None for "none".

        Raises:
            PositionError: for "special", if the positions have no `special`.
        """
        if kind == "first":
            return cls(positions.query == 0, positions.key == 0)
        if kind == "none":
            return None
        if positions.special is None:
            raise PositionError(
                "cls='special' reads Positions.special, which is not given; cls='first' needs none"
            )
        start = positions.key.shape[1] - positions.query.shape[1]
        return cls(positions.special[:, start:], positions.special)

    def __call__(self, correlation: Tensor, theta: Tensor) -> Tensor:
        """Return equation 9: theta_1 where the query is a [CLS], else theta_2 where the key is one.

        Args:
            correlation: (batch or 1, heads or 1, T, S).
            theta: (2, heads).

        Returns:
            (batch or 1, heads, T, S).
        """
        row, column = theta.to(correlation.dtype)[:, :, None, None]
        query, key = self.query[:, None, :, None], self.key[:, None, None, :]
        return torch.where(query | key, torch.where(query, row, column), correlation)


@dataclass(eq=False)
class UntiedBias(PairBias):
    """A bias from which [CLS] is untied.

    Equation 9 adds products of two columns to the pairs without a [CLS]: with c_t = 1 at a [CLS], else 0,
    that is c_t theta_1 + (1 - c_t) theta_2 c_s. Where a bias b_{s-t} of the distance is added to all pairs,
    the columns subtract its entries in the row and the column of the [CLS].

    Args:
        inner: the bias before the reset.
        reset: masks of the [CLS] tokens.
        theta: (2, heads).
    """

    inner: DistanceBias | ProductBias
    reset: Reset
    theta: Tensor

    def _whole(self) -> Tensor:
        return self.reset(self.inner.matrix, self.theta)

    def terms(self, q: Tensor, k: Tensor, scale: float) -> AttentionTerms | None:
        theta = self.theta.to(q.dtype)
        at_query, at_key = (at[:, None, :, None].to(q.dtype) for at in (self.reset.query, self.reset.key))
        more = self.inner if isinstance(self.inner, DistanceBias) else self.inner.more
        row, column = theta[:, None, :, None, None].unbind()
        if more is not None:
            beside = self._beside(more, q.dtype)
            if beside is None:
                return None
            row, column = row - beside[0][..., None], column - beside[1][..., None]
        heads = len(self.theta[0])
        (queries, keys), others = (q.shape[2], k.shape[2]), 1 - at_query
        query = [at_query, others * column.expand(-1, -1, queries, -1)]
        key = [row.expand(-1, -1, keys, -1), at_key]
        if isinstance(self.inner, ProductBias):
            query.append(self.inner.query * others)
            key.append(self.inner.key * (1 - at_key))
        wide = [
            torch.cat([part.expand(max(map(len, parts)), heads, -1, -1) for part in parts], -1)
            for parts in (query, key)
        ]
        return product_terms(q, k, scale, wide[0], wide[1], None if more is None else more.table)

    def _beside(self, more: DistanceBias, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """Return a bias of the distance at the [CLS] as query, (heads or 1, S), and as key, (heads or 1, T).

        Returns:
            Zeros where the [CLS] is not among these; None if there are several, or samples differ.
        """
        if more.distances.index is not None or len(self.reset.key) > 1:
            return None
        indices = [at[0].nonzero().flatten().tolist() for at in (self.reset.query, self.reset.key)]
        if max(map(len, indices)) > 1:
            return None
        (length, slots), table = more.distances.shape, more.table.to(dtype)
        row, column = table.new_zeros(len(table), slots), table.new_zeros(len(table), length)
        if indices[0]:
            row = table[:, length - 1 - indices[0][0] :][:, :slots]
        if indices[1]:
            column = table[:, indices[1][0] :][:, :length].flip(-1)
        return row, column


def untied(bias: PairBias | Tensor, reset: Reset | None, theta: Tensor) -> PairBias | Tensor:
    """Return a bias with [CLS] untied; unchanged without a reset."""
    if reset is None:
        return bias
    if isinstance(bias, DistanceBias | ProductBias):
        return UntiedBias(bias, reset, theta)
    return reset(bias.matrix if isinstance(bias, PairBias) else bias, theta)


@register("untied_cls")
class UntiedCls(PositionBias):
    """Another model's position bias, with [CLS] untied: equation 9 on any bias that does not depend on
    content.

    Where the query is a [CLS] the bias of each head is theta_1, else where the key is one it is theta_2, both
    learned and the same in all blocks. They start at a standard deviation of 0.02; the released code of TUPE
    starts those of T5's bias at 1, as it does the bias.

    Args:
        model: name of a model that only adds a content-free bias, such as "t5", "alibi",
            "dufter_relative" or "chen_absolute".
        options: options of that model.
        cls: "first" (the token at position 0) or "special" (`Positions.special`).

    Raises:
        PositionError: if the model is not of that kind, or an option is not valid.

    Example:
        >>> from floater.encodings import AttentionContext
        >>> model = UntiedCls(StackSpec(dim=8, heads=1, layers=1, max_length=16), model="alibi")
        >>> _ = torch.nn.init.ones_(model.theta)
        >>> q = torch.zeros(1, 1, 3, 8)
        >>> model.bias(q, q, AttentionContext(model.prepare(Positions.arange(3)), 0))[0, 0, 0].tolist()
        [1.0, 1.0, 1.0]
    """

    card = Card(
        paper="Ke et al. 2021",
        link="https://arxiv.org/abs/2006.15595",
        stacks={"encoder": "BERT"},
        point="both",
        equation="q_t k_s + reset(b_{s-t}): theta_1 where t is [CLS], else theta_2 where s is",
        parameters="34 * h",
    )

    def __init__(
        self, spec: StackSpec, *, model: str = "t5", options: dict[str, Any] | None = None, cls: str = "first"
    ) -> None:
        super().__init__(spec)
        one_of("cls", cls, CLS[:2])
        inner = build_for(model, spec, **(options or {}))
        if spec.site in self.sites and not adds_bias_alone(inner):
            raise PositionError(f"[CLS] can be untied from a content-free bias only; '{model}' is none")
        self.inner, self.cls = inner, cls
        describe_as(self, inner)
        self.theta = nn.Parameter(torch.empty(2, spec.heads))
        self.reset_parameters()

    @property
    def max_positions(self) -> int | None:
        """Return the bound of the inner model."""
        return self.inner.max_positions

    def reset_parameters(self) -> None:
        nn.init.normal_(self.theta, std=0.02)
        self.inner.reset_parameters()

    def overrides(self, *hooks: str) -> bool:
        passed = {hook for hook in ("scale", "query_gain") if not self.inner.overrides(hook)}
        return super().overrides(*(hook for hook in hooks if hook not in passed))

    def scale(self, head_dim: int) -> float:
        return self.inner.scale(head_dim)

    def query_gain(self, head_dim: int) -> float:
        return self.inner.query_gain(head_dim)

    def prepare(self, positions: Positions) -> tuple[Any, Reset | None]:
        return self.inner.prepare(positions), Reset.at(positions, self.cls)

    def added(self, state: Any, layer: int) -> PairBias | Tensor:
        assert isinstance(self.inner, PositionBias)
        inner, reset = state
        # a model with a matrix of its own computes nothing else
        bias = (
            self.inner.added(inner, layer) if self.inner.has_terms else self.inner.correlation(inner, layer)
        )
        return untied(bias, reset, self.theta)
