"""The interface of a position model, and the catalogue of those that exist."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from floater.encodings.card import Card
from floater.encodings.terms import AttentionTerms
from floater.positions import Positions

Site = Literal["self", "decoder", "cross"]
Projection = Literal["query", "key", "value", "cross_query"]
QKV = tuple[Tensor, Tensor, Tensor]


class PositionError(ValueError):
    """A position model was asked for something that it cannot do."""


@dataclass(frozen=True)
class StackSpec:
    """The stack of blocks that a position model serves.

    Args:
        dim: width of the model, d.
        heads: attention heads.
        layers: blocks, N.
        max_length: training length in tokens: the table size of bounded models, the span over which a flow
            starts with vectors of order one.
        site: "self" for an encoder or a language model, "decoder" for self-attention followed by
            cross-attention, "cross" for the keys and values that cross-attention reads from the source.
        vocabulary: number of token ids, for models with parameters for each; None if that is not known.
        causal: whether queries of self-attention see their own and earlier keys only.
        horizon: end T of the times that encodings which read times meet, in tokens (random times in
            training); None when times are the positions.
        initializer_range: standard deviation of initial tables and projections of positions where the
            Transformer around them has one for all weights (BERT, GPT); None for d^-1/2 and Xavier's.

    Raises:
        PositionError: if a size is not positive, heads do not divide dim, or there is no such site.

    Example:
        >>> StackSpec(dim=512, heads=8, layers=6, max_length=256).site
        'self'
    """

    dim: int
    heads: int
    layers: int
    max_length: int
    site: Site = "self"
    vocabulary: int | None = None
    causal: bool = False
    horizon: int | None = None
    initializer_range: float | None = None

    def __post_init__(self) -> None:
        for name in ("dim", "heads", "layers", "max_length", "horizon"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise PositionError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.dim % self.heads:
            raise PositionError(f"dim {self.dim} is not a multiple of heads {self.heads}")
        one_of("site", self.site, get_args(Site))

    def init_table(self, weight: Tensor) -> None:
        """Draw a table of position vectors (..., dim)."""
        own = self.initializer_range
        nn.init.normal_(weight, std=self.dim**-0.5 if own is None else own)

    def init_linear(self, weight: Tensor) -> None:
        """Draw the weight (out, in) of a projection of positions."""
        if self.initializer_range is None:
            nn.init.xavier_uniform_(weight)
        else:
            nn.init.normal_(weight, std=self.initializer_range)


class PositionModel(nn.Module):
    """How position enters a Transformer: hooks that default to the identity.

    A model overrides only what it changes. The Transformer calls `prepare` once per forward pass and the
    other hooks where they act; which of them are overridden decides the attention kernel. Shapes: x is
    (batch, T, dim). In `qkv` q, k and v are (batch, T, heads, head_dim). In `bias` and `logits` q is
    (batch, heads, T, head_dim) and k (batch, heads, S, head_dim), cached keys included.
    Logits and weights are (batch, heads, T, S). `state` is what `prepare` returned; `layer` counts blocks
    from 0.

    Class attributes: `card` is the entry in the catalogue; `sites` are those of `StackSpec.site` where it
    acts; `length_aware` says that its decoder must know the final length of the text, `autoregressive` that
    a decoder may write one token after another; `bounded` that it has `max_length` positions;
    `derives_places` that it finds by itself where tokens stand: by order, segments, coordinates, a structure.

    Args:
        spec: the stack of blocks it serves.

    Example:
        >>> class Distance(PositionModel):
        ...     def prepare(self, positions):
        ...         return -positions.delta[:, None].abs().float()
        ...     def bias(self, q, k, state, layer):
        ...         return state
        >>> model = Distance(StackSpec(dim=8, heads=2, layers=1, max_length=16))
        >>> model.overrides("bias"), model.overrides("logits", "value_bias")
        (True, False)
    """

    card: Card
    sites: ClassVar[tuple[Site, ...]] = ("self", "decoder")
    length_aware: ClassVar[bool] = False
    autoregressive: ClassVar[bool] = True
    bounded: ClassVar[bool] = False
    derives_places: ClassVar[bool] = False

    def __init__(self, spec: StackSpec) -> None:
        super().__init__()
        self.spec = spec

    @property
    def max_positions(self) -> int | None:
        """Return how many positions the model has; None if it serves any length."""
        return self.spec.max_length if self.bounded else None

    @property
    def caches(self) -> bool:
        """Return whether decoding with a cache gives what the whole text gives."""
        card = getattr(self, "card", None)  # the identity has none
        return card is None or "cache" not in card.exceptions

    @property
    def supports_segment_memory(self) -> bool:
        """Return whether its blocks can read their inputs of earlier segments, at other positions."""
        return self.card.point in ("relative", "none") and self.caches

    @property
    def reads_times(self) -> bool:
        """Return whether the model reads the times of `Positions` instead of the positions.

        By default encodings of absolute positions do, tables at whole times. Relative ones, rotations of
        queries and keys included, read the true positions: random times would blur the distances.
        """
        card = getattr(self, "card", None)  # the identity has none
        own = self.length_aware or self.derives_places
        return card is not None and card.point == "absolute" and not own

    @property
    def reads_distances(self) -> bool:
        """Return whether the model adds a bias of `Positions.delta`, which can count far distances in groups.

        Rotations of queries and keys do not: cached keys are rotated before a query is known.
        """
        card = getattr(self, "card", None)
        relative = card is not None and card.point in ("relative", "both") and not self.derives_places
        return relative and self.overrides("bias", "logits") and not self.overrides("qkv")

    @classmethod
    def recipe(cls, given: Mapping[str, Any]) -> str:
        """Return the name of the recipe of the Transformer around it (see `Card`), given its options."""
        card: Card | None = getattr(cls, "card", None)  # an encoding of one's own may have none
        return "transformer" if card is None else card.recipe

    def reset_parameters(self) -> None:
        """Draw the model's own parameters anew."""

    def bake(self, length: int) -> None:
        """Replace the model's own flows by what they give for positions 0, ..., length - 1, for inference."""

    def prepare(self, positions: Positions) -> Any:
        """Return what all layers share, computed once per forward pass: solves, tables, buckets."""
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
        """Return whether the residual connection leads around the self-attention of a block."""
        return True

    def on_projections(
        self, projections: Mapping[str, Callable[[Tensor], Tensor]], state: Any, layer: int
    ) -> None:
        """Look at a block's own projections of self-attention, by their names, before they act."""

    def inputs(self, x: Tensor, state: Any, layer: int) -> QKV:
        """Return what the query, key and value projections of self-attention read."""
        return x, x, x

    def projection_bias(self, name: Projection, state: Any, layer: int) -> Tensor | None:
        """Return vectors (batch or 1, T, dim) that are added to the bias of a projection, in one product.

        Args:
            name: "query", "key" or "value" of self-attention; "cross_query" for the queries of
                cross-attention (site "decoder"). At the site "cross" "key" and "value" are those of
                cross-attention.
            state: what `prepare` returned.
            layer: index of the block, from 0.
        """
        return None

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, state: Any, layer: int) -> QKV:
        """Change queries, keys and values of self-attention after projection."""
        return q, k, v

    def scale(self, head_dim: int) -> float:
        """Return the factor of the dot products."""
        return float(head_dim**-0.5)

    def query_gain(self, head_dim: int) -> float:
        """Return the factor of the initial query weights of self-attention.

        1 unless the authors compensate their `scale` at initialisation, as T5 does. Not every model with
        a scale of its own does: TUPE, DeBERTa and TENER start with the weights of the plain Transformer.
        """
        return 1.0

    def bias(self, q: Tensor, k: Tensor, state: Any, layer: int) -> Tensor | None:
        """Return additive logits of self-attention, broadcastable to (batch, heads, T, S), already scaled."""
        return None

    def logits(self, logits: Tensor, q: Tensor, k: Tensor, state: Any, layer: int) -> Tensor:
        """Change the logits of self-attention (multiplicative models)."""
        return logits

    def weights(self, logits: Tensor, state: Any, layer: int) -> Tensor:
        """Return the attention weights of logits, which are -inf where a query may not attend.

        By default the softmax; a query that may attend to no key gets zeros.
        """
        weights = logits.softmax(-1)
        if not weights.shape[-1]:
            return weights
        nothing = logits.detach().amax(-1, keepdim=True) == -torch.inf
        return weights.masked_fill(nothing, 0.0)

    def mask(self, state: Any, layer: int) -> Tensor | None:
        """Return which keys a query may attend to: bool, broadcastable to (batch, heads, T, S)."""
        return None

    def value_bias(self, weights: Tensor, state: Any, layer: int) -> Tensor | None:
        """Return the weighted sum of biases that each pair of query and key adds to the value.

        It is added to weights @ v: (batch, heads, T, head_dim).
        """
        return None

    def attention_terms(self, q: Tensor, k: Tensor, state: Any, layer: int) -> AttentionTerms | None:
        """Return what `bias` and `value_bias` add, for a kernel that computes it tile by tile.

        It is an option, not another hook: both say the same, and None leaves it to them. A subclass that
        overrides them but not this is asked for them alone (`has_terms`).
        """
        return None

    @property
    def has_terms(self) -> bool:
        """Return whether `attention_terms` says what the hooks that it stands for say."""
        return _has_terms(type(self))  # type: ignore[arg-type]  # classes are hashable

    def overrides(self, *hooks: str) -> bool:
        """Return whether the model changes any of the named hooks."""
        return any(getattr(type(self), hook) is not getattr(PositionModel, hook) for hook in hooks)


@functools.cache
def _has_terms(model: Any) -> bool:
    def defined(hook: str) -> int:
        return next((n for n, owner in enumerate(model.__mro__) if hook in vars(owner)), len(model.__mro__))

    hooks = "bias", "correlation", "logits", "weights", "mask", "value_bias"
    own = defined("attention_terms")
    return own < model.__mro__.index(PositionModel) and own <= min(map(defined, hooks))


_CATALOGUE: dict[str, type[PositionModel]] = {}
_Model = TypeVar("_Model", bound=type[PositionModel])


def register(name: str) -> Callable[[_Model], _Model]:
    """Enter a position model in the catalogue under a name; a class decorator.

    Args:
        name: its name for `build` and `FloaterConfig.position`. A name that exists is taken over.

    Raises:
        PositionError: if the class has no card.

    Example:
        >>> none = catalogue()["none"]
        >>> register("none")(none) is none
        True
    """

    def enter(model: _Model) -> _Model:
        if not hasattr(model, "card"):
            raise PositionError(
                f"{model.__name__} has no card, which says what '{name}' is; give it the class attribute "
                "card = Card(paper, link, point, equation)"
            )
        _CATALOGUE[name] = model
        return model

    return enter


def catalogue() -> dict[str, type[PositionModel]]:
    """Return every position model of the library by its name, in order of name.

    Example:
        >>> "floater" in catalogue()
        True
    """
    return dict(sorted(_CATALOGUE.items()))


def options(name: str) -> dict[str, Any]:
    """Return the options of a position model and their defaults.

    Raises:
        PositionError: if the name is unknown; it names the nearest one.

    Example:
        >>> options("sinusoidal")
        {'blocks': 'input', 'uncovered': 'keep'}
    """
    if name not in _CATALOGUE:
        raise PositionError(f"unknown position model '{name}'{_nearest(name, catalogue())}")
    parameters = list(inspect.signature(_CATALOGUE[name].__init__).parameters.values())[2:]
    return {parameter.name: parameter.default for parameter in parameters}


def check_options(name: str, given: Iterable[str]) -> None:
    """Refuse names that are no options of a position model.

    Raises:
        PositionError: if a name is unknown; it names the nearest one.

    Example:
        >>> check_options("sinusoidal", ["block"])
        Traceback (most recent call last):
        floater.encodings.model.PositionError: unknown option 'block' of position model 'sinusoidal'; \
did you mean 'blocks'?
    """
    known = options(name)
    for option in given:
        if option not in known:
            raise PositionError(
                f"unknown option '{option}' of position model '{name}'{_nearest(option, known)}"
            )


def build(
    name: str,
    *,
    dim: int,
    heads: int,
    layers: int,
    max_length: int,
    site: Site = "self",
    vocabulary: int | None = None,
    causal: bool = False,
    horizon: int | None = None,
    initializer_range: float | None = None,
    **given: Any,
) -> PositionModel:
    """Make a position model for a stack of blocks.

    Args:
        name: a name of the catalogue.
        dim: width of the model.
        heads: attention heads.
        layers: blocks.
        max_length: training length in tokens.
        site: see `StackSpec`.
        vocabulary: see `StackSpec`.
        causal: see `StackSpec`.
        horizon: see `StackSpec`; the number of entries of a table that is read at times.
        initializer_range: see `StackSpec`.
        given: options of the model, by name.

    Returns:
        The model; where it does nothing at a site (a table of positions at "cross", say), the identity.

    Raises:
        PositionError: if the name, an option or a value is not valid; it names the nearest valid one.

    Example:
        >>> build("sinusoidal", dim=8, heads=2, layers=1, max_length=16).overrides("embed")
        True
    """
    spec = StackSpec(dim, heads, layers, max_length, site, vocabulary, causal, horizon, initializer_range)
    return build_for(name, spec, **given)


def at_least_one(**given: float | None) -> None:
    """Refuse options below 1; None, a default, is none.

    Raises:
        PositionError: it names the first that is.

    Example:
        >>> at_least_one(width=0)
        Traceback (most recent call last):
        floater.encodings.model.PositionError: width is 0; it must be at least 1
    """
    for name, value in given.items():
        if value is not None and not value >= 1:
            raise PositionError(f"{name} is {value}; it must be at least 1")


def build_for(name: str, spec: StackSpec, **given: Any) -> PositionModel:
    """Make a position model for a stack of blocks; see `build`."""
    check_options(name, given)
    model = _CATALOGUE[name](spec, **given)
    end, horizon = model.max_positions, spec.horizon
    if horizon is not None and end is not None and end < horizon and model.reads_times:
        model = _CATALOGUE[name](replace(spec, max_length=horizon), **given)
    return model if spec.site in model.sites else PositionModel(spec)


def chosen_blocks(blocks: str | list[int] | tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Return the blocks that "input", "all" or a list of indices stands for.

    Raises:
        PositionError: if a block does not exist.

    Example:
        >>> chosen_blocks("all", 3), chosen_blocks("input", 3), chosen_blocks([0, 2], 3)
        ((0, 1, 2), (0,), (0, 2))
    """
    if blocks == "all":
        return tuple(range(layers))
    if blocks == "input":
        return (0,)
    if not isinstance(blocks, list | tuple):
        raise PositionError(f"blocks is {blocks!r}; it must be 'input', 'all' or a list of block indices")
    chosen = tuple(sorted(set(blocks)))
    if not chosen or chosen[0] < 0 or chosen[-1] >= layers:
        raise PositionError(f"blocks is {blocks}; there are blocks 0 to {layers - 1}")
    return chosen


def one_of(name: str, value: Any, valid: tuple[Any, ...]) -> None:
    """Refuse an option's value that is not one of the valid ones.

    Raises:
        PositionError: if `value` is not among `valid`.

    Example:
        >>> one_of("depth", 3, (1, 2))
        Traceback (most recent call last):
        floater.encodings.model.PositionError: depth is 3; it must be one of 1, 2
    """
    if value not in valid:
        raise PositionError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, valid))}")


def _nearest(word: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; there are: {', '.join(names)}" if names else "; it has no options"
