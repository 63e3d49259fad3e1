"""The interface of a position model: hooks in a Transformer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from floater.encodings.card import Card
from floater.encodings.context import AttentionContext, Projection
from floater.encodings.spec import Site, StackSpec
from floater.encodings.terms import AttentionTerms
from floater.positions import Positions

QKV = tuple[Tensor, Tensor, Tensor]


class Stage(IntEnum):
    """When the `qkv` of an encoding acts among composed ones, by what it does to queries and keys.

    Encodings of the same stage act in the order in which they are listed.
    """

    REPLACE = 0
    """It replaces keys, so that whatever changes them must come later."""
    KEEP = 1
    """It keeps their widths."""
    ROTATE = 2
    """It turns queries and keys by their positions, for the dot products alone: terms of other encodings that
    read queries or keys read them as they are before it, so that a distance has one effect everywhere."""
    WIDEN = 3
    """It changes their widths, and nothing that needs the width of a head may come later."""
    APPEND = 4
    """It appends components that its own `bias` or `logits` reads."""


class PositionModel(nn.Module):
    """The hooks by which position enters a Transformer; by default each is the identity.

    A model overrides only what it changes. The Transformer calls `prepare` once per forward pass and the
    other hooks where they act; which of them are overridden decides the attention kernel. Shapes: x is
    (batch, T, dim). In `qkv` q, k and v are (batch, T, heads, head_dim). In `bias` and `logits` q is
    (batch, heads, T, head_dim) and k (batch, heads, S, head_dim), cached keys included.
    Logits and weights are (batch, heads, T, S). `state` is the result of `prepare`; `layer` counts blocks
    from 0. The hooks of attention read both, and more, from one `AttentionContext`;
    `floater.encodings.attention` calls these hooks, in the order in which they act.

    Class attributes: `card` is the entry in the catalogue; `sites` are those of `StackSpec.site` where it
    acts; `length_aware` means that its decoder needs the final length of the text, `autoregressive` that
    a decoder may write one token after another; `bounded` that it has `max_length` positions;
    `derives_positions` that it derives them itself, from order, segments, coordinates or a structure;
    `needs_cross_attention` that it acts there alone; `stage` is when its `qkv` acts among composed models;
    `reads_content` means that its `bias` or `logits` reads queries or keys, as wide as a head;
    `reads_products` that its `logits` multiplies queries and keys as the dot products do, rotated;
    `reads_components` that its `qkv` is a function of single components of queries and keys, which no
    rotation may have mixed; `planes` are those in which it rotates, None if they are not fixed: only
    rotations in the same planes commute; `half_read` has the axes of tables, by the names of parameters,
    (n - 1) / 2 of whose n entries are those of later keys, which a causal stack never reads; `dtype` is the
    type of the model around it, which casts change.

    Args:
        spec: the stack of blocks.

    Example:
        >>> class Distance(PositionModel):
        ...     def prepare(self, positions):
        ...         return -positions.delta[:, None].abs().float()
        ...     def bias(self, q, k, context):
        ...         return context.state
        >>> model = Distance(StackSpec(dim=8, heads=2, layers=1, max_length=16))
        >>> model.overrides("bias"), model.overrides("logits", "value_bias")
        (True, False)
    """

    card: Card
    sites: ClassVar[tuple[Site, ...]] = ("self", "decoder")
    length_aware: ClassVar[bool] = False
    autoregressive: ClassVar[bool] = True
    bounded: ClassVar[bool] = False
    derives_positions: bool = False
    needs_cross_attention: bool = False
    stage: Stage = Stage.KEEP
    reads_content: bool = True
    reads_products: bool = False
    reads_components: bool = False
    planes: tuple[str, int] | None = None
    half_read: ClassVar[Mapping[str, int]] = MappingProxyType({})
    dtype: torch.dtype = torch.float32

    def __init__(self, spec: StackSpec) -> None:
        super().__init__()
        self.spec = spec
        self.dtype = torch.get_default_dtype()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # casts reach models without parameters, too: a sinusoid is as exact as the model around it
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]

    @property
    def max_positions(self) -> int | None:
        """Return the number of positions that the model has; None if there is no maximum."""
        return self.spec.max_length if self.bounded else None

    @property
    def caches(self) -> bool:
        """Return whether decoding with a cache gives the outputs of the whole text."""
        card = getattr(self, "card", None)  # the identity has none
        return card is None or "cache" not in card.exceptions

    @property
    def supports_segment_memory(self) -> bool:
        """Return whether its blocks can attend to their inputs in earlier segments, at other positions."""
        return self.card.point in ("relative", "none") and self.caches

    @property
    def reads_times(self) -> bool:
        """Return whether the model reads the times of `Positions` instead of the positions.

        By default encodings of absolute positions do, tables at integer times. Relative ones, rotations of
        queries and keys included, read the positions, which are those of times only if a model asks for it.
        """
        card = getattr(self, "card", None)  # the identity has none
        derives = self.length_aware or self.derives_positions
        return card is not None and card.point == "absolute" and not derives

    @property
    def reads_distances(self) -> bool:
        """Return whether the model adds a bias of `Positions.delta`, which can count far distances in groups.

        Rotations of queries and keys do not: cached keys are rotated before a query is known.
        """
        card = getattr(self, "card", None)
        relative = card is not None and card.point in ("relative", "both") and not self.derives_positions
        return relative and self.overrides("bias", "logits") and not self.overrides("qkv")

    @property
    def serves_some_heads(self) -> bool:
        """Return whether attention may have some of the heads only, as on one of several processes.

        By default, where the model acts before queries, keys and values are split into heads.
        """
        hooks = "qkv", "rotated", "bias", "logits", "weights", "mask", "value_bias", "attention_terms"
        return not self.overrides(*hooks)

    @classmethod
    def recipe(cls, options: Mapping[str, Any]) -> str:
        """Return the name of the recipe of the Transformer around it (see `Card`), given its options."""
        card: Card | None = getattr(cls, "card", None)  # a user's encoding may have none
        return "transformer" if card is None else card.recipe

    @property
    def unread_parameters(self) -> int:
        """Return the number of entries of the model's own tables that a causal stack never reads."""
        tables = [(getattr(self, name), axis) for name, axis in self.half_read.items()]
        later = [
            table.numel() // table.shape[axis] * (table.shape[axis] - 1) // 2
            for table, axis in tables
            if table is not None
        ]
        return sum(later) if self.spec.causal else 0

    def reset_parameters(self) -> None:
        """Initialise the model's own parameters."""

    def check_bake(self) -> None:
        """Refuse to bake a model whose vectors or biases depend on more than positions; by default none.

        Raises:
            PositionError: if the model cannot be baked.
        """

    def bake(self, length: int) -> None:
        """Replace the model's own flows by their vectors at positions 0, ..., length - 1, for inference."""
        self.check_bake()

    def prepare(self, positions: Positions) -> Any:
        """Return the state that all layers share, computed once per forward pass: solves, tables, buckets."""
        return None

    def prepared(self, positions: Positions) -> Any:
        """Prepare the model at the times of the positions if it reads times, else at the positions."""
        return self.prepare(positions.timed if self.reads_times else positions)

    def embed(self, x: Tensor, state: Any) -> Tensor:
        """Change the input embeddings."""
        return x

    def block(self, x: Tensor, state: Any, layer: int) -> Tensor:
        """Change the input of a block, residual branch included."""
        return x

    def residual(self, layer: int) -> bool:
        """Return whether the self-attention of a block has a residual connection."""
        return True

    def inputs(self, context: AttentionContext[Any]) -> QKV:
        """Return the inputs of the query, key and value projections of self-attention."""
        return context.x, context.x, context.x

    def projection_bias(self, name: Projection, context: AttentionContext[Any]) -> Tensor | None:
        """Return vectors (batch or 1, T, dim) that are added to the bias of a projection, in one product.

        Args:
            name: "query", "key" or "value" of self-attention; "cross_query" for the queries of
                cross-attention (site "decoder"). At the site "cross" "key" and "value" are those of
                cross-attention.
            context: what hooks read.
        """
        return None

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[Any]) -> QKV:
        """Change queries, keys and values of self-attention after projection."""
        return q, k, v

    def rotated(self, q: Tensor, k: Tensor, context: AttentionContext[Any]) -> tuple[Tensor, Tensor]:
        """Return the queries and keys of the dot products, where `bias` and `logits` read others.

        It acts on all keys, cached ones included, which the cache holds as `qkv` left them. Shapes as in
        `bias`.
        """
        return q, k

    def scale(self, head_dim: int) -> float:
        """Return the factor of the dot products."""
        return float(head_dim**-0.5)

    def query_gain(self, head_dim: int) -> float:
        """Return the factor of the initial query weights of self-attention.

        1 unless the authors compensate their `scale` at initialisation, as T5 does. Not every model with
        a scale of its own does: TUPE, DeBERTa and TENER start with the weights of the plain Transformer.
        """
        return 1.0

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[Any]) -> Tensor | None:
        """Return additive logits of self-attention, broadcastable to (batch, heads, T, S), already scaled."""
        return None

    def logits(self, logits: Tensor, q: Tensor, k: Tensor, context: AttentionContext[Any]) -> Tensor:
        """Change the logits of self-attention (multiplicative models)."""
        return logits

    def weights(self, logits: Tensor, context: AttentionContext[Any]) -> Tensor:
        """Return the attention weights of logits, which are -inf where a query may not attend.

        By default the softmax; a query that may attend to no key gets zeros.
        """
        weights = logits.softmax(-1)
        if not weights.shape[-1]:
            return weights
        nothing = logits.detach().amax(-1, keepdim=True) == -torch.inf
        return weights.masked_fill(nothing, 0.0)

    def mask(self, context: AttentionContext[Any]) -> Tensor | None:
        """Return the bool mask of the keys that a query may attend to, broadcastable to (batch, heads, T,
        S)."""
        return None

    def value_bias(self, weights: Tensor, context: AttentionContext[Any]) -> Tensor | None:
        """Return the weighted sum of the biases of values, which depend on the pair of query and key.

        It is added to weights @ v: (batch, heads, T, head_dim).
        """
        return None

    def attention_terms(self, q: Tensor, k: Tensor, context: AttentionContext[Any]) -> AttentionTerms | None:
        """Return the terms of `bias` and `value_bias`, for a kernel that computes them tile by tile.

        Optional: both forms compute the same, and with None those hooks are used. They are also used for a
        subclass that overrides them but not this method (`has_terms`).
        """
        return None

    @property
    def has_terms(self) -> bool:
        """Return whether `attention_terms` computes what the hooks that it replaces compute."""
        return _has_terms(type(self))  # type: ignore[arg-type]  # classes are hashable

    def overrides(self, *hooks: str) -> bool:
        """Return whether the model changes any of the named hooks."""
        return any(getattr(type(self), hook) is not getattr(PositionModel, hook) for hook in hooks)


def scale_as_projected(model: PositionModel, head_dim: int) -> float:
    """Return the factor of the dot products of heads that `qkv` has not widened; a method `scale` of a model.

    Example:
        >>> from floater import build
        >>> build("pope", dim=8, heads=2, layers=1, max_length=16).scale(8)  # twice as wide as a head
        0.5
    """
    return PositionModel.scale(model, model.spec.dim // model.spec.heads)


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters of all position models in a module, without unread ones.

    Example:
        >>> from floater import build
        >>> sizes = {"dim": 8, "heads": 2, "layers": 1, "max_length": 16}
        >>> [count_parameters(build("huang2", **sizes, causal=causal)) for causal in (False, True)]
        [62, 32]
    """
    inner = [module for module in model.modules() if isinstance(module, PositionModel)]
    distinct = {parameter for module in inner for parameter in module.parameters()}
    return sum(each.numel() for each in distinct) - sum(module.unread_parameters for module in inner)


@functools.cache
def _has_terms(model: Any) -> bool:
    def defined(hook: str) -> int:
        return next((n for n, owner in enumerate(model.__mro__) if hook in vars(owner)), len(model.__mro__))

    hooks = "bias", "correlation", "logits", "weights", "mask", "value_bias"
    terms = defined("attention_terms")
    return terms < model.__mro__.index(PositionModel) and terms <= min(map(defined, hooks))
