"""The circumstances that the hooks of a position model read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

Projection = Literal["query", "key", "value", "cross_query"]

State = TypeVar("State")
Other = TypeVar("Other")


class AttentionContext(NamedTuple, Generic[State]):
    """The circumstances of one attention: what any of its hooks may read.

    Args:
        state: the result of `PositionModel.prepare`.
        layer: index of the block, from 0.
        x: (batch, T, dim), the input of the block's attention; empty where a hook is called that does not
            read it.
        projections: the block's own projections of self-attention, by name ("query", "key" and "value"), each
            a function from (..., dim) to (..., dim).

    Example:
        >>> context = AttentionContext("the state of two parts", layer=3)
        >>> context.with_state("that of one").layer
        3
    """

    state: State
    layer: int
    x: Tensor = torch.empty(0)
    projections: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({})

    def with_state(self, state: Other) -> AttentionContext[Other]:
        """Return the context with another state: that of a part of a composition, or of other positions."""
        return AttentionContext(state, self.layer, self.x, self.projections)
