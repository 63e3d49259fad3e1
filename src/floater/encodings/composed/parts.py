"""Other encodings as parts of one: how they are named, built, and described together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from floater.encodings.card import Card, Point
from floater.encodings.context import AttentionContext, Projection
from floater.encodings.errors import PositionError
from floater.encodings.model import QKV, PositionModel, Stage
from floater.encodings.registry import build_for, catalogue, name_of
from floater.encodings.registry import options as default_options
from floater.encodings.spec import StackSpec
from floater.encodings.terms import AttentionTerms
from floater.positions import Positions

Part = str | Mapping[str, Any]
Named = tuple[str, dict[str, Any]]


def named(part: Part) -> Named:
    """Return the name and the options of a part.

    Args:
        part: a name of the catalogue, or a mapping of `name` and options. With `clock`, a mapping of options
            of "clock", it is short for that encoding with the rest as its `model`.

    Raises:
        PositionError: if the part is neither.

    Example:
        >>> named({"name": "rotary", "base": 500.0})
        ('rotary', {'base': 500.0})
        >>> named({"name": "alibi", "clock": {"per": "block"}})
        ('clock', {'model': {'name': 'alibi'}, 'per': 'block'})
    """
    if isinstance(part, str):
        return part, {}
    texts = isinstance(part, Mapping) and all(isinstance(key, str) for key in part)
    if isinstance(part, Mapping) and texts and isinstance(part.get("name"), str):
        options = {key: value for key, value in part.items() if key not in ("name", "clock")}
        if "clock" not in part:
            return part["name"], options
        if not isinstance(part["clock"], Mapping):
            raise PositionError(f"clock is {part['clock']!r}; it must be a mapping of options, {{}} for none")
        return "clock", {"model": {"name": part["name"], **options}, **part["clock"]}
    raise PositionError(f"{part!r} is not an encoding; give a name, or a mapping of name and options")


def resolved(
    position: str | Sequence[Part] | Mapping[str, Any], options: Mapping[str, Any], field: str = "position"
) -> Named:
    """Return the name and the options of the encoding that a configuration describes.

    Args:
        position: a name; a list of parts, short for "compose"; or a mapping of `name` and options.
        options: options of a name; see `named` for `clock`.
        field: name of the field of the configuration, for messages.

    Raises:
        ValueError: if there are options beside a list or a mapping.

    Example:
        >>> resolved(["rotary", "alibi"], {})
        ('compose', {'models': ['rotary', 'alibi']})
        >>> resolved("rotary", {"clock": {}})
        ('clock', {'model': {'name': 'rotary'}})
    """
    if isinstance(position, str):
        return named({**options, "name": position})
    if options:
        kind, inside = ("mapping", "it") if isinstance(position, Mapping) else ("list", "its entries")
        raise ValueError(f"{field} is a {kind}; give options in {inside}, not in {field}_options")
    return named(position) if isinstance(position, Mapping) else ("compose", {"models": position})


@dataclass(frozen=True)
class States:
    """The states of the encodings of a composition.

    Args:
        models: the state of each encoding, at the positions of the queries.
        key_states: the states of rotations at the positions of all keys, by the index of the encoding, where
            a cache holds keys that are not rotated.
    """

    models: list[Any]
    key_states: dict[int, Any]


class Composite(PositionModel):
    """An encoding composed of others; subclasses choose those that act in a block.

    Biases and values are added, masks intersected, changes of embeddings, queries, keys, values and logits
    chained in the order of the parts. Parts that change the width of queries and keys come last there, and
    first at the logits, which they may compute anew (`Stage`). Biases are added to logits that other parts
    have changed, so that none is lost. Where a part reads queries or keys in its bias or logits, rotations
    turn those of the dot products alone, and the cache holds keys that are not rotated. Bounds, exceptions
    and needs are those of all parts together; the scales of the dot products must agree. The parts of a part
    that is a composition itself count one by one.

    Args:
        parts: the encodings.
        acting: indices of the parts that act in each block.

    Raises:
        PositionError: if there is no part, one does not exist or needs its own kind of decoder, or they do
            not go together.
    """

    sites = ("self", "decoder", "cross")

    def __init__(self, spec: StackSpec, parts: Sequence[Part], acting: Sequence[Sequence[int]]) -> None:
        super().__init__(spec)
        if not parts:
            raise PositionError("the list of encodings is empty; name at least one")
        pairs = [named(part) for part in parts]
        self.parts = nn.ModuleList(build_for(name, spec, **options) for name, options in pairs)
        for name, _ in pairs:
            kind = catalogue()[name]
            if kind.length_aware or not kind.autoregressive:
                raise PositionError(f"'{name}' needs its own kind of decoder; it cannot be part of another")
        self._acting_in = [tuple(self._leaves(layer, chosen)) for layer, chosen in enumerate(acting)]
        self._late_in = [tuple(self._rotations(indices)) for indices in self._acting_in]
        kinds = [part for part in self.models if hasattr(part, "card")]  # the others are identities here
        self.card = _together(type(self).card, [part.card for part in kinds])
        if not all(self._rotations_commute(indices) for indices in self._acting_in):
            why = "rotations in different planes do not commute"
            self.card = replace(self.card, exceptions={**self.card.exceptions, "shift": why})
        self.derives_positions = all(
            part.derives_positions for part in kinds if part.card.point in ("relative", "both")
        )
        self.needs_cross_attention = any(part.needs_cross_attention for part in self.models)
        trees = {part.needs for part in self.models if hasattr(part, "needs")}
        if trees:
            self.needs = "tree" if "tree" in trees else trees.pop()
        self._scaled = [part for part in self.models if part.overrides("scale")]
        self._check()

    def _leaves(self, layer: int, chosen: Sequence[int]) -> Iterator[int]:
        """Yield the indices of the encodings of the chosen parts that act in a block."""
        first = 0
        for index, part in enumerate(self.parts):
            inner = part.acting(layer) if isinstance(part, Composite) else (0,)
            if index in chosen:
                yield from (first + each for each in inner)
            first += len(part.models) if isinstance(part, Composite) else 1

    def _rotations(self, indices: Sequence[int]) -> Iterator[int]:
        """Yield those of encodings in a block that rotate after others have read queries and keys."""
        acting = {index: self.models[index] for index in indices}
        if any(reads_content(part) and not part.reads_products for part in acting.values()):
            yield from (index for index, part in acting.items() if part.stage == Stage.ROTATE)

    def _rotations_commute(self, indices: Sequence[int]) -> bool:
        """Return whether the encodings that rotate in a block do so in the same planes."""
        parts = [self.models[index] for index in indices]
        planes = [part.planes for part in parts if part.stage == Stage.ROTATE or part.planes is not None]
        return len(planes) < 2 or (None not in planes and len(set(planes)) == 1)

    def _check(self) -> None:
        """Refuse parts that do not go together."""
        scales = {name_of(part): part.scale(self.spec.dim // self.spec.heads) for part in self._scaled}
        if len(set(scales.values())) > 1:
            raise PositionError(f"the scales of the dot products differ, {scales}; one must serve all parts")
        free = [part for part in self.models if part.stage == Stage.WIDEN and not part.overrides("scale")]
        if free and self._scaled:
            raise PositionError(
                f"'{name_of(free[0])}' changes the width of queries and keys, and with it the scale of the "
                f"dot products, which is fixed by '{next(iter(scales))}'; only one of them can be a part"
            )
        for indices in self._acting_in:
            acting = [self.models[index] for index in indices]
            # what replaces keys chooses their input, too
            if sum(part.overrides("inputs") or part.stage == Stage.REPLACE for part in acting) > 1:
                raise PositionError("two encodings choose what the projections read; one can be a part")
            if sum(part.stage == Stage.APPEND for part in acting) > 1:
                raise PositionError("two encodings append components to the keys; one can be a part")
            if sum(part.overrides("weights") for part in acting) > 1:
                raise PositionError("two encodings replace the softmax; one can be a part")
            turning = [part for part in acting if part.stage == Stage.ROTATE or part.planes is not None]
            magnitudes = [part for part in acting if part.reads_components]
            if turning and magnitudes:
                raise PositionError(
                    f"'{name_of(magnitudes[0])}' reads single components of queries and keys, which "
                    f"'{name_of(turning[0])}' rotates; only one of them can be a part"
                )
            wide = [part for part in acting if part.stage == Stage.WIDEN]
            others = wide[1:] or [p for p in acting if reads_content(p) or p.overrides("rotated")]
            if wide and others:
                raise PositionError(
                    f"'{name_of(wide[0])}' changes the width of queries and keys, which "
                    f"'{name_of(others[0])}' needs as wide as a head; only one of them can be a part"
                )

    @classmethod
    def recipe(cls, options: Mapping[str, Any]) -> str:
        """Return the recipe for which the parts ask; without one that of the plain Transformer.

        Raises:
            PositionError: if parts ask for different recipes.
        """
        parts = map(named, cls.named_parts(options))
        recipes = {
            name: catalogue()[name].recipe(default_options(name) | chosen)
            for name, chosen in parts
            if name in catalogue()
        }
        asked = {recipe: name for name, recipe in recipes.items() if recipe != cls.card.recipe}
        if len(asked) > 1:
            (one, first), (other, second) = list(asked.items())[:2]
            raise PositionError(
                f"'{first}' asks for the recipe '{one}' and '{second}' for '{other}'; choose one by `recipe`"
            )
        return next(iter(asked), cls.card.recipe)

    @classmethod
    def named_parts(cls, options: Mapping[str, Any]) -> Sequence[Part]:
        """Return the parts that options name."""
        raise NotImplementedError(f"{cls.__name__} must define named_parts")

    @property
    def models(self) -> list[PositionModel]:
        """Return the encodings; a part that is a composition itself is replaced by its own encodings."""
        leaves: list[PositionModel] = []
        for part in self.parts:
            leaves += part.models if isinstance(part, Composite) else [part]  # type: ignore[list-item]
        return leaves

    def acting(self, layer: int) -> Sequence[int]:
        """Return the indices of the encodings that act in a block, among `models`."""
        return self._acting_in[layer]

    @property
    def max_positions(self) -> int | None:
        """Return the smallest bound of the parts, None if no part has one."""
        return min(
            (part.max_positions for part in self.models if part.max_positions is not None), default=None
        )

    @property
    def supports_segment_memory(self) -> bool:
        """Return whether all parts support a memory of earlier segments."""
        return all(part.supports_segment_memory for part in self.models)

    @property
    def reads_times(self) -> bool:
        """Return whether a part reads times; each part is prepared at those that it reads."""
        return any(part.reads_times for part in self.models)

    @property
    def reads_distances(self) -> bool:
        """Return whether a part reads distances, and no other, as rotations do, reads true ones beside it."""
        return any(part.reads_distances for part in self.models) and not self.overrides("qkv")

    @property
    def serves_some_heads(self) -> bool:
        return all(part.serves_some_heads for part in self.models)

    def overrides(self, *hooks: str) -> bool:
        """Return whether a part changes any of the named hooks."""
        return any(part.overrides(*hooks) for part in self.models)

    def reset_parameters(self) -> None:
        for part in self.models:
            part.reset_parameters()

    def prepared(self, positions: Positions) -> States:
        models, key_states = self.models, {}
        if positions.query.shape[1] != positions.key.shape[1]:
            late = {index for indices in self._late_in for index in indices}
            key_states = {index: models[index].prepared(positions.keys_as_queries) for index in late}
        return States([part.prepared(positions) for part in models], key_states)

    prepare = prepared

    def embed(self, x: Tensor, state: States) -> Tensor:
        for part, part_state in zip(self.models, state.models, strict=True):
            x = part.embed(x, part_state)
        return x

    def _acting(
        self, context: AttentionContext[States]
    ) -> Iterator[tuple[PositionModel, AttentionContext[Any]]]:
        """Yield the encodings that act in a block, each with a context of its own state."""
        models, states = self.models, context.state.models
        return (
            (models[index], context.with_state(states[index])) for index in self._acting_in[context.layer]
        )

    def block(self, x: Tensor, state: States, layer: int) -> Tensor:
        for index in self._acting_in[layer]:
            x = self.models[index].block(x, state.models[index], layer)
        return x

    def residual(self, layer: int) -> bool:
        return all(self.models[index].residual(layer) for index in self._acting_in[layer])

    def inputs(self, context: AttentionContext[States]) -> QKV:
        for part, part_context in self._acting(context):
            if part.overrides("inputs"):
                return part.inputs(part_context)
        return super().inputs(context)

    def projection_bias(self, name: Projection, context: AttentionContext[States]) -> Tensor | None:
        return _sum(
            [part.projection_bias(name, part_context) for part, part_context in self._acting(context)]
        )

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[States]) -> QKV:
        models, late = self.models, self._late_in[context.layer]
        now = [index for index in self._acting_in[context.layer] if index not in late]
        for index in sorted(now, key=lambda index: models[index].stage):
            q, k, v = models[index].qkv(q, k, v, context.with_state(context.state.models[index]))
        return q, k, v

    def rotated(self, q: Tensor, k: Tensor, context: AttentionContext[States]) -> tuple[Tensor, Tensor]:
        width = self.spec.dim // self.spec.heads
        for index in self._late_in[context.layer]:
            part = self.models[index]
            part_context = context.with_state(context.state.models[index])
            (q_, q_more), (k_, k_more) = (
                (x[..., :width].transpose(1, 2), x[..., width:]) for x in (q, k)
            )  # others have appended components
            if index in context.state.key_states:
                q_ = part.qkv(q_, q_, q_, part_context)[0]
                k_ = part.qkv(k_, k_, k_, context.with_state(context.state.key_states[index]))[1]
            else:
                q_, k_, _ = part.qkv(q_, k_, k_, part_context)
            q, k = (torch.cat([x.transpose(1, 2), more], -1) for x, more in ((q_, q_more), (k_, k_more)))
        for part, part_context in self._acting(context):
            q, k = part.rotated(q, k, part_context)
        return q, k

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[States]) -> Tensor | None:
        if self.overrides("logits"):
            return None  # `logits` adds it
        return self._bias(q, k, context)

    def _bias(self, q: Tensor, k: Tensor, context: AttentionContext[States]) -> Tensor | None:
        return _sum(
            [
                part.bias(*self._content(part, q, k, context), part_context)
                for part, part_context in self._acting(context)
            ]
        )

    def _content(
        self, part: PositionModel, q: Tensor, k: Tensor, context: AttentionContext[States]
    ) -> tuple[Tensor, Tensor]:
        """Return the queries and keys that a part reads: without what other parts have appended."""
        if part.reads_products:
            q, k = self.rotated(q, k, context)
        if part.stage < Stage.WIDEN and part.reads_content:
            width = self.spec.dim // self.spec.heads
            return q[..., :width], k[..., :width]
        return q, k

    @property
    def has_terms(self) -> bool:
        """Return whether a part has terms; they are used where no other part acts on logits or values."""
        return any(part.has_terms for part in self.models)

    def attention_terms(
        self, q: Tensor, k: Tensor, context: AttentionContext[States]
    ) -> AttentionTerms | None:
        hooks = "bias", "logits", "weights", "value_bias"
        acting = [pair for pair in self._acting(context) if pair[0].overrides(*hooks)]
        if len(acting) != 1 or not acting[0][0].has_terms:
            return None
        part, part_context = acting[0]
        terms = part.attention_terms(q, k, part_context)
        if terms is None or terms.bias_alone:
            return terms
        if part.scale(q.shape[-1]) != self.scale(q.shape[-1]):
            return None  # products of queries and keys would have another scale than those of its `bias`
        later = any(other.overrides("rotated") for other, _ in self._acting(context))
        if not (later or self._late_in[context.layer]):
            return terms
        if terms.content is not None or terms.keys is not None:
            return None  # they read keys that are not those of the products
        distance_queries = q if terms.distance_queries is None else terms.distance_queries
        return replace(terms, content=self.rotated(q, k, context), distance_queries=distance_queries)

    def logits(self, logits: Tensor, q: Tensor, k: Tensor, context: AttentionContext[States]) -> Tensor:
        for part, part_context in sorted(self._acting(context), key=lambda pair: pair[0].stage < Stage.WIDEN):
            logits = part.logits(logits, *self._content(part, q, k, context), part_context)
        bias = self._bias(q, k, context) if self.overrides("logits") else None
        return logits if bias is None else logits + bias.to(logits.dtype)

    def weights(self, logits: Tensor, context: AttentionContext[States]) -> Tensor:
        for part, part_context in self._acting(context):
            if part.overrides("weights"):
                return part.weights(logits, part_context)
        return super().weights(logits, context)

    def mask(self, context: AttentionContext[States]) -> Tensor | None:
        mask = None
        for part, part_context in self._acting(context):
            allowed = part.mask(part_context)
            if allowed is not None:
                mask = allowed if mask is None else mask & allowed
        return mask

    def value_bias(self, weights: Tensor, context: AttentionContext[States]) -> Tensor | None:
        return _sum([part.value_bias(weights, part_context) for part, part_context in self._acting(context)])

    def scale(self, head_dim: int) -> float:
        return self._scaled[0].scale(head_dim) if self._scaled else super().scale(head_dim)

    def query_gain(self, head_dim: int) -> float:
        return min(part.query_gain(head_dim) for part in self.models)


def _together(card: Card, cards: Sequence[Card]) -> Card:
    """Return the card of a composition: the reference points and the exceptions of all parts."""
    points = {part.point for part in cards} - {"none"}
    point: Point = "both" if len(points) > 1 else points.pop() if points else "none"
    exceptions = {key: why for part in cards for key, why in part.exceptions.items()}
    return replace(card, point=point, exceptions=exceptions)


def reads_content(part: PositionModel) -> bool:
    """Return whether a part reads queries or keys in `bias` or `logits`, as wide as a head."""
    return part.stage != Stage.WIDEN and part.reads_content and part.overrides("bias", "logits")


def _sum(terms: Sequence[Tensor | None]) -> Tensor | None:
    """Return the sum of the tensors among the terms; None if there is none."""
    tensors = [term for term in terms if term is not None]
    return sum(tensors[1:], tensors[0]) if tensors else None
