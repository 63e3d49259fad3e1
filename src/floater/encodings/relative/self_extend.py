"""Rotary positions whose far distances are compressed: Self-Extend (Jin et al. 2024), ReRoPE (Su 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from floater.encodings.card import Card
from floater.encodings.checks import at_least_one, one_of
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import Stage, scale_as_projected
from floater.encodings.registry import register
from floater.encodings.relative.rotary import Rotary
from floater.encodings.spec import StackSpec
from floater.positions import Positions

Turns = tuple[Tensor, Tensor]


@register("self_extend")
class SelfExtend(Rotary):
    """Rotary positions that read distances beyond a window as shorter ones, without training.

    A distance d below `window` w is unchanged. A larger one is read, by `form`, as

    - "floor": floor(t / G) - floor(s / G) + w - w / G, G the `group` (Self-Extend, section 3.2; the paper
      rounds w / G down, the released code does not);
    - "leaky": w + (d - w) / G (leaky ReRoPE), on real angles;
    - "rectified": w (ReRoPE).

    No distance then exceeds those of training while the text is shorter than about G (L - w) + w tokens. A
    model that was trained with `rotary` has the same parameters. Queries and keys carry a rotation for near
    and one for far keys, so the cache holds twice the numbers. Both papers are causal; later keys are
    compressed in the same way. Groups begin at multiples of G: with "floor" a shift of all positions by
    less than G changes the products of distant tokens slightly.

    Args:
        spec: the stack of blocks; head_dim must be even.
        form: "floor", "leaky" or "rectified".
        group: G, the tokens that share a position beyond the window; above 1. "rectified" has none.
        window: w in tokens; half of max_length by default, at least 1.
        pairs: components that rotate together: "interleaved", 2i and 2i + 1; "half", i and i + head_dim / 2.
        base: base of the frequencies, above 1.
        partial: share of the components of a head that rotate, the first ones, above 0 and at most 1.
        scaling: None, or a rule that rescales the frequencies for longer texts: a mapping with `rope_type`
            "linear", "dynamic", "yarn", "longrope", "llama3" or "proportional" and its keys.

    Raises:
        PositionError: if an option is not valid.

    Example:
        >>> model = SelfExtend(StackSpec(dim=4, heads=2, layers=1, max_length=16), form="rectified", window=2)
        >>> x = torch.tensor([1.0, 0.0]).expand(1, 9, 2, 2)
        >>> context = AttentionContext(model.prepare(Positions.arange(9)), 0)
        >>> q, k = (y.transpose(1, 2) for y in model.qkv(x, x, x, context)[:2])
        >>> model.logits(q @ k.mT, q, k, context)[0, 0, 8, [0, 5, 7]] * 2**0.5  # cos 2, cos 2, cos 1
        tensor([-0.4161, -0.4161,  0.5403])
    """

    card = Card(
        paper="Jin et al. 2024",
        link="https://arxiv.org/abs/2401.01325",
        stacks={"causal": "language models"},
        point="relative",
        equation="rotary at d for d < w, else at floor(t/G) - floor(s/G) + w - w/G; ReRoPE: at w",
        exceptions={"shift": "groups begin at multiples of G; form='leaky' and 'rectified' have none"},
    )

    stage = Stage.WIDEN
    scale = scale_as_projected

    def __init__(
        self,
        spec: StackSpec,
        *,
        form: str = "floor",
        group: float = 8,
        window: int | None = None,
        pairs: str = "interleaved",
        base: float = 10000.0,
        partial: float = 1.0,
        scaling: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(spec, pairs=pairs, base=base, partial=partial, scaling=scaling)
        one_of("form", form, ("floor", "leaky", "rectified"))
        if not group > 1:
            raise PositionError(f"group is {group}; it must be above 1")
        if form == "rectified" and group != 8:
            raise PositionError(f"group is {group}, but form='rectified' has no groups beyond the window")
        self.window = max(1, spec.max_length // 2) if window is None else window
        at_least_one(window=self.window)
        self.form, self.group = form, group
        if form != "floor":
            self.card = replace(self.card, exceptions={})

    def prepare(self, positions: Positions) -> tuple[list[Turns], Tensor]:  # type: ignore[override]
        at, window = positions.query.double(), float(self.window)
        if self.form == "floor":
            far, shift = at.div(self.group).floor(), window - window / self.group
        elif self.form == "leaky":
            far, shift = at / self.group, window - window / self.group
        else:
            far, shift = at * 0, window
        # of near pairs; of far keys; of queries with earlier and, unless causal, with later far keys
        shifted = [at, far, far + shift] + [far - shift] * (not self.spec.causal)
        turns = [super(SelfExtend, self).prepare(positions._but(query=query)) for query in shifted]
        return turns, (positions.key[:, None, :] - positions.query[:, :, None])[:, None]

    def qkv(  # type: ignore[override]
        self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[tuple[list[Turns], Tensor]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        near, far_key, *far_queries = context.state[0]
        queries = torch.cat([self.rotate(q, turns) for turns in (near, *far_queries)], -1)
        keys = torch.cat([self.rotate(k, near), self.rotate(k, far_key)], -1)
        return queries, F.pad(keys, (0, queries.shape[-1] - keys.shape[-1])), v

    def logits(
        self, logits: Tensor, q: Tensor, k: Tensor, context: AttentionContext[tuple[list[Turns], Tensor]]
    ) -> Tensor:
        width = self.spec.dim // self.spec.heads
        near, far = k[..., :width], k[..., width : 2 * width]
        scale, delta = self.scale(width), context.state[1]
        products = torch.where(
            delta.abs() < self.window,
            q[..., :width] @ near.mT * scale,
            q[..., width : 2 * width] @ far.mT * scale,
        )
        if self.spec.causal:
            return products
        return torch.where(delta >= self.window, q[..., 2 * width : 3 * width] @ far.mT * scale, products)
