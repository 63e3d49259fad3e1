"""The terms that an encoding adds to attention, in a form that a kernel computes tile by tile."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AttentionTerms:
    """The terms of logits and outputs that depend on the distance of query and key.

    Logits are scale (q_t k_s + p_t a_{s-t} + k_s c_{s-t}) + b_{s-t}, outputs the sum of w_ts (v_s + d_{s-t}).
    Tables have an entry for each of T + S increasing distances, the first being that of the last query and
    the first key: query t and key s, counted from 0, meet entry s - t + T - 1. So queries and keys must be
    consecutive, and the same in all samples.

    Args:
        content: q (batch, heads, T, D) and k (batch, heads, S, D) of the dot products, in place of the
            block's, of any width D.
        scale: factor of the dot products, in place of the block's.
        distance_queries: p, (batch, heads, T, head_dim); None for the block's q.
        bias: b, (heads or 1, T + S).
        queries: a, (T + S, head_dim) or (heads, T + S, head_dim).
        keys: c, as a.
        values: d, as a.
        has_mask: whether b is -inf where `PositionModel.mask` forbids a key, and the mask is not needed.
        first_entry: the entry with which a and d begin (less than 0 if before the first): earlier entries
            equal their first, and those past the end their last. None where they have all entries.

    Example:
        >>> AttentionTerms().bias is None
        True
    """

    content: tuple[Tensor, Tensor] | None = None
    scale: float | None = None
    distance_queries: Tensor | None = None
    bias: Tensor | None = None
    queries: Tensor | None = None
    keys: Tensor | None = None
    values: Tensor | None = None
    has_mask: bool = False
    first_entry: int | None = None

    @property
    def bias_alone(self) -> bool:
        """Return whether there is a bias and nothing that depends on the contents of tokens."""
        return not any(
            x is not None
            for x in (self.content, self.scale, self.distance_queries, self.queries, self.keys, self.values)
        )
