"""Caches of Transformers that also hold the positions of their keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache


@dataclass(frozen=True)
class KeyPositions:
    """The positions of cached keys.

    Args:
        positions: positions as the model counts them, (batch, S).
        scale: scale of the rotation of the keys, see `floater.pretrained.extending.watch.Watch`.
    """

    positions: Tensor
    scale: float


class CacheWithPositions(Cache):
    """A cache of Transformers that also has `KeyPositions`, whose rows follow those of the cache.

    The class of a cache that holds keys of an extended model is replaced by one that inherits from this class
    and from its former class. Tokens that are removed from the end of a cache need no method, as only the
    first `get_seq_length()` positions are read.
    """

    floater_keys: KeyPositions

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows, as in beam search."""
        super().reorder_cache(beam_idx)  # type: ignore[arg-type]
        self._map_rows(lambda rows: rows.index_select(0, beam_idx.to(rows.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        super().batch_repeat_interleave(repeats)
        self._map_rows(lambda rows: rows.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some of the rows."""
        super().batch_select_indices(indices)
        self._map_rows(lambda rows: rows[indices.to(rows.device) if isinstance(indices, Tensor) else indices])

    def _map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        keys = self.floater_keys
        self.floater_keys = KeyPositions(change(keys.positions), keys.scale)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        former: Any = type(self).__mro__[2]
        return _new, (former,), self.__dict__


@functools.cache
def _with_positions(kind: Any) -> Any:
    return type(kind.__name__, (CacheWithPositions, kind), {"__module__": kind.__module__})


def _new(kind: Any) -> Any:
    """Return an empty object of the class, for copies and pickles."""
    return _with_positions(kind).__new__(_with_positions(kind))


def store_positions(cache: Any, keys: KeyPositions) -> None:
    """Store the positions of its keys in a cache, whose class changes."""
    kind: Any = type(cache)
    if not issubclass(kind, CacheWithPositions):
        cache.__class__ = _with_positions(kind)
    cache.floater_keys = keys
