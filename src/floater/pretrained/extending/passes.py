"""The forward passes of an extended body: the positions of its tokens and the scale of cached keys."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from floater.pretrained.body import ThreadPass
from floater.pretrained.extending.errors import ExtendError
from floater.tracing import refuse_trace

_HELD = "floater_pass"
"""Name of the attribute of a cache with the positions of its keys and their scale."""


@dataclass(frozen=True)
class Pass:
    """One forward pass.

    Args:
        query: positions of the tokens that are read, (batch or 1, T).
        key: positions of the cached tokens and of the tokens that are read, (batch or 1, S).
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

    @functools.cached_property
    def last(self) -> int:
        """Return the last position of a query."""
        return int(self.query.max())


class Watch:
    """A record of the forward passes of a body.

    Keys are cached after their rotation. If the scale of the rotation depends on the length of the text, keys
    that were cached at another scale have wrong positions (transformers#25104), so such a pass is refused.

    Args:
        body: model of Transformers that reads the tokens; hooks are registered on it.
        method: name of the extension's method, for messages.
        scale: function from the number of positions of a text to the scale of its rotation; None if the scale
            never changes.
        masked: True if positions are determined by padding and not by `position_ids`, as in BLOOM.
        attention: name of the attention function that the body must have; None for any.

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
        masked: bool = False,
        attention: str | None = None,
    ) -> None:
        self.method, self.scale, self.masked, self.attention = method, scale, masked, attention
        self.signature = inspect.signature(type(body).forward)
        self._own = ThreadPass()
        self._last: Pass | None = None
        body.register_forward_pre_hook(self.enter, with_kwargs=True)
        body.register_forward_hook(self.leave)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None}

    @property
    def current(self) -> Pass:
        """Return the pass of this thread or, as backward passes may run in another thread, the last pass."""
        found: Pass | None = self._own.current or self._last
        if found is None:
            raise ExtendError("an extended model was called in part; call the model itself, model(...)")
        return found

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the positions of the tokens of a pass; a forward pre-hook."""
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
        given = {**bound.pop("kwargs", {}), **bound}
        if given.get("input_ids") is None and given.get("inputs_embeds") is None:
            return  # the body refuses it
        cache = given.get("past_key_values")
        past = 0 if cache is None else int(cache.get_seq_length())
        query = self._query(given, past)
        held: Pass | None = getattr(cache, _HELD, None) if past else None
        if past and held is None:
            raise ExtendError(
                "the keys in the cache are not of this model since it was extended; begin with an empty cache"
            )
        key = query
        if held is not None:
            before = held.key[:, :past]
            rows = max(len(before), len(query))
            key = torch.cat((before.expand(rows, -1), query.expand(rows, -1)), 1)
        scale = 1.0 if self.scale is None else float(self.scale(int(query.max()) + 1))
        if held is not None and scale != held.scale:
            raise ExtendError(
                f"the {past} keys in the cache are rotated for shorter texts: {self.method!r} rotates a text "
                f"of {int(query.max()) + 1} tokens otherwise; generate with use_cache=False, or extend by a "
                "method that rotates all lengths alike, such as 'yarn'"
            )
        self._own.current = self._last = Pass(query, key, scale)
        if cache is not None:
            setattr(cache, _HELD, self._own.current)

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Store the pass in the cache that the body returns; a forward hook."""
        parts = output.values() if isinstance(output, Mapping) else output
        for part in parts if not isinstance(parts, Tensor) else ():
            if isinstance(part, Cache):
                setattr(part, _HELD, self._own.current)
        self.current.kept.clear()

    def _query(self, given: Mapping[str, Any], past: int) -> Tensor:
        words = next(given[name] for name in ("input_ids", "inputs_embeds") if given.get(name) is not None)
        count, mask, ids = words.shape[1], given.get("attention_mask"), given.get("position_ids")
        if self.masked and isinstance(mask, Tensor) and mask.ndim == 2 and not bool(mask.all()):
            places = (mask.long().cumsum(1) - 1) * mask.long()
            return places[:, past : past + count]
        if ids is None or self.masked:
            return torch.arange(past, past + count, device=words.device)[None]
        positions: Tensor = ids if ids.ndim == 2 else ids[None]
        return positions
