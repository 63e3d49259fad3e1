"""The forward passes of an extended body: the positions of its tokens and of the keys in its cache."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers.cache_utils import Cache

from floater.positions.tracing import refuse_trace
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.forward import Arguments, PerThread, observe

PASS = "floater_pass"
"""Argument of a body by which its attention modules get the pass, also when a checkpoint runs them again."""


@dataclass(frozen=True)
class Pass:
    """One forward pass.

    Args:
        query: positions of the tokens that are read, (batch or 1, T); for attention modules, counted from the
            first token of a row that is not padding.
        key: positions of the cached tokens and of the tokens that are read, (batch or 1, S), likewise.
        scale: scale of the rotation, see `Watch`.
        kept: values that the blocks share until the pass ends, by name.
    """

    query: Tensor
    key: Tensor
    scale: float
    kept: dict[str, Tensor] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Return the number of tokens of the longest text so far."""
        return self.key.shape[1]

    @functools.cached_property
    def counts_up(self) -> bool:
        """Return whether all texts have the positions 0, 1, 2, ..."""
        every = torch.arange(self.length, device=self.key.device)[None]
        return torch.equal(self.key, every) and torch.equal(self.query, every[:, -self.query.shape[1] :])


def checked(current: Pass | None) -> Pass:
    """Return a pass.

    Raises:
        ExtendError: if there is none.
    """
    if current is None:
        raise ExtendError("an extended model was called in part; call the model itself, model(...)")
    return current


@dataclass(frozen=True)
class Keys:
    """Positions (batch, S) of cached keys, as the model counts them, and the scale of their rotation."""

    positions: Tensor
    scale: float


class Following(Cache):
    """A cache of Transformers that also has `Keys`, whose rows follow those of the cache.

    The class of a cache that holds keys of an extended model is replaced by one that inherits from this class
    and from its former class. Tokens that are removed from the end of a cache need no method, as only the
    first `get_seq_length()` positions are read.
    """

    floater_keys: Keys

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows, as in beam search."""
        super().reorder_cache(beam_idx)  # type: ignore[arg-type]
        self._take(lambda rows: rows.index_select(0, beam_idx.to(rows.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        super().batch_repeat_interleave(repeats)
        self._take(lambda rows: rows.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some of the rows."""
        super().batch_select_indices(indices)
        self._take(lambda rows: rows[indices.to(rows.device) if isinstance(indices, Tensor) else indices])

    def _take(self, rows: Callable[[Tensor], Tensor]) -> None:
        self.floater_keys = Keys(rows(self.floater_keys.positions), self.floater_keys.scale)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        former: Any = type(self).__mro__[2]
        return _new, (former,), self.__dict__


@functools.cache
def _following(kind: Any) -> Any:
    return type(kind.__name__, (Following, kind), {"__module__": kind.__module__})


def _new(kind: Any) -> Any:
    """Return an empty object of the class, for copies and pickles."""
    return _following(kind).__new__(_following(kind))


def _follow(cache: Any, keys: Keys) -> None:
    """Store the positions of keys in a cache."""
    kind: Any = type(cache)
    if not issubclass(kind, Following):
        cache.__class__ = _following(kind)
    cache.floater_keys = keys


class Watch:
    """An observer of the forward passes of a body.

    Keys are cached after their rotation. If the scale of the rotation depends on the length of the text, keys
    that were cached at another scale have wrong positions (transformers#25104), so such a pass is refused.

    Args:
        body: model of Transformers that reads the tokens; it is observed.
        method: name of the extension's method, for messages.
        scale: function from the number of positions of a batch to the scale of its rotation; None if the
            scale never changes.
        attention: name of the attention function that the body must have; None for any. The attention
            modules of such a body get the pass as the argument `PASS`.
        biases: None if queries and keys are rotated; "slots" or "tokens" if a bias is added to logits, and
            positions are counted with padding, as in MPT, or without, as in BLOOM. The keys in a cache then
            do not depend on their positions.

    Raises:
        ExtendError: in a forward pass, if keys were cached at another scale or by a model that was not
            extended, or the body has another attention function.
    """

    def __init__(
        self,
        body: nn.Module,
        method: str,
        *,
        scale: Callable[[int], float] | None = None,
        attention: str | None = None,
        biases: str | None = None,
    ) -> None:
        self.method, self.scale, self.attention, self.biases = method, scale, attention, biases
        self.signature = inspect.signature(type(body).forward)
        self._own, self._keys = PerThread(), PerThread()
        self._passes = WeakTensorKeyDictionary()
        observe(body, self)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_passes": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _passes=WeakTensorKeyDictionary())

    @property
    def current(self) -> Pass:
        """Return the pass of this thread."""
        return checked(self._own.current)

    def of(self, argument: Tensor) -> Pass:
        """Return the pass in which a block got an argument; a checkpoint runs the block again after it."""
        if self._own.current is not None:
            self._passes[argument] = self._own.current
        return checked(self._passes.get(argument))  # type: ignore[no-untyped-call]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Record the positions of the tokens of a pass."""
        what = f"a model extended by {self.method!r}"
        refuse_trace(ExtendError, what, "extend by the configuration alone, as 'yarn' does")
        if torch.compiler.is_exporting():
            raise ExtendError(
                f"{what} cannot be exported, as it reads the positions of each text; extend by the "
                "configuration alone, as 'yarn' does"
            )
        own = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if self.attention is not None and own != self.attention:
            raise ExtendError(
                f"the attention function is {own!r}, but a model extended by {self.method!r} needs "
                f"{self.attention!r}: call model.set_attn_implementation({self.attention!r})"
            )
        bound = self.signature.bind_partial(module, *args, **kwargs).arguments
        inputs = {**bound.pop("kwargs", {}), **bound}
        words = inputs.get("input_ids")
        words = inputs.get("inputs_embeds") if words is None else words
        if words is None:
            return None  # the body refuses it
        cache = inputs.get("past_key_values")
        cache = getattr(cache, "self_attention_cache", cache)
        past = 0 if cache is None else int(cache.get_seq_length())
        mask = inputs.get("attention_mask")
        if self.biases is not None:
            key = self._counted(words, past, mask)
            self._own.current = Pass(key[:, past:], key, 1.0)
            return None
        query = _given(words, past, inputs.get("position_ids"))
        scale = 1.0 if self.scale is None else float(self.scale(int(query.max()) + 1))
        key = self._cached(cache, past, query, scale)
        self._own.current = Pass(query, key, scale)
        self._keys.current = Keys(key, scale)
        if cache is not None:
            _follow(cache, self._keys.current)
        if self.attention is None:
            return None
        first = _first(key, mask)
        return args, {**kwargs, PASS: Pass(query - first, key - first, scale)}

    def leave(self, output: Any) -> None:
        """Store the positions of keys in the cache that the body returns."""
        parts = output.values() if isinstance(output, Mapping) else output
        for part in parts if self._keys.current is not None and not isinstance(parts, Tensor | None) else ():
            cache = getattr(part, "self_attention_cache", part)
            if isinstance(cache, Cache):
                _follow(cache, self._keys.current)
        if self._own.current is not None:
            self._own.current.kept.clear()
        self._own.current = self._keys.current = None

    def _counted(self, words: Tensor, past: int, mask: Any) -> Tensor:
        """Return the positions of all tokens so far, (batch or 1, S)."""
        length = past + words.shape[1]
        if self.biases == "tokens" and isinstance(mask, Tensor) and mask.ndim == 2 and not bool(mask.all()):
            mask = mask[:, :length].long()
            places: Tensor = (mask.cumsum(1) - 1) * mask
            return places
        return torch.arange(length, device=words.device)[None]

    def _cached(self, cache: Any, past: int, query: Tensor, scale: float) -> Tensor:
        """Return the positions of the cached tokens and of those that are read, (batch, S)."""
        if not past:
            return query
        keys: Keys | None = getattr(cache, "floater_keys", None)
        if keys is None:
            raise ExtendError(
                "the keys in the cache are not of this model since it was extended; begin with an empty cache"
            )
        rows, length = keys.positions.shape
        if rows != len(query) or length < past:
            raise ExtendError(
                f"the cache has the positions of {length} keys of {rows} texts, but {past} keys, and "
                f"{len(query)} texts are read; change its rows by its methods, such as batch_select_indices"
            )
        if scale != keys.scale:
            raise ExtendError(
                f"the {past} keys in the cache are rotated for shorter texts: {self.method!r} rotates a text "
                f"of {int(query.max()) + 1} tokens otherwise; generate with use_cache=False, or extend by a "
                "method that rotates all lengths alike, such as 'yarn'"
            )
        return torch.cat((keys.positions[:, :past].to(query.device), query), 1)


def _given(words: Tensor, past: int, ids: Any) -> Tensor:
    """Return the positions of the tokens that are read as the model counts them, (batch, T)."""
    rows, count = words.shape[:2]
    if ids is None:
        ids = torch.arange(past, past + count, device=words.device)
    if ids.ndim == 3:  # time, height and width
        ids = ids.amax(0)
    return ids.expand(rows, -1)  # type: ignore[no-any-return]


def _first(key: Tensor, mask: Any) -> Tensor:
    """Return the position of the first token of each row that is not padding, (batch, 1)."""
    if isinstance(mask, Mapping):  # Transformers makes a mask for each kind of layer
        mask = mask.get("full_attention")
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 4):
        return key[:, :1]
    if mask.ndim == 4:
        mask = mask[:, 0, -1]
        mask = mask if mask.dtype == torch.bool else mask >= 0
    visible = mask[:, : key.shape[1]].bool().expand(len(key), -1)
    return key.gather(1, visible.int().argmax(1, keepdim=True))
