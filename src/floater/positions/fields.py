"""The fields of positions, and what is derived from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor

from floater.positions.checks import check_shapes, widened
from floater.positions.tracing import refuse_trace, require
from floater.structures import Structure

_REAL = ("query", "key", "query_time", "key_time", "coordinates")
"""Fields that may be real numbers."""


class PositionFields:
    """The fields of `Positions`, which documents them, and the positions derived from them.

    Its fields cannot be set. It is not a dataclass: FSDP2's mixed precision casts the tensors
    of dataclasses, and in bfloat16 positions from 256 on are rounded.
    """

    __match_args__ = (
        *("query", "key", "key_valid", "special", "target_length", "language", "reordered", "structure"),
        *("document", "token", "segment", "query_time", "key_time", "coordinates", "group"),
    )
    # Not arguments: copied by `but`, they would outlive the positions that they are true of.
    below: int | None = None
    starts: tuple[int, int] | None = None

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        key_valid: Tensor | None = None,
        special: Tensor | None = None,
        target_length: Tensor | None = None,
        language: Tensor | None = None,
        reordered: Tensor | None = None,
        structure: Structure | None = None,
        document: Tensor | None = None,
        token: Tensor | None = None,
        segment: Tensor | None = None,
        query_time: Tensor | None = None,
        key_time: Tensor | None = None,
        coordinates: Tensor | None = None,
        group: tuple[int, int] | None = None,
    ) -> None:
        self.query, self.key, self.key_valid, self.special = widened(query), widened(key), key_valid, special
        self.target_length, self.language, self.reordered = map(widened, (target_length, language, reordered))
        self.document, self.token, self.segment = map(widened, (document, token, segment))
        self.query_time, self.key_time, self.coordinates = map(widened, (query_time, key_time, coordinates))
        self.structure, self.group = structure, group
        self._check()
        self._check_finite()

    def _check(self, *, lengths: bool = True) -> None:
        refuse_trace(ValueError, "a model with positions", "use torch.export, with a flow after bake")
        masks = {"key_valid": self.key_valid, "special": self.special}
        nodes = None if self.structure is None else self.structure.token_valid
        query_ids = {"language": self.language, "reordered": self.reordered, "token": self.token}
        key_ids = {"document": self.document, "segment": self.segment}
        if (self.query_time is None) != (self.key_time is None):
            raise ValueError("give query_time and key_time both or neither")
        queries = {"query": self.query, **query_ids, "query_time": self.query_time}
        axis = None if self.coordinates is None else self.coordinates.select(-1, 0)
        key_values = {"coordinates": axis, "key_time": self.key_time}
        keys = {"key": self.key, **masks, "structure": nodes, **key_ids, **key_values}
        check_shapes(queries, keys, self.target_length)
        for name, mask in masks.items():
            if mask is not None and mask.dtype != torch.bool:
                raise ValueError(f"{name} is {mask.dtype}; it must be bool")
        for name in ("language", "token", *key_ids):
            ids = (query_ids | key_ids)[name]
            if ids is not None and (ids.is_floating_point() or ids.is_complex()):
                raise ValueError(f"{name} is {ids.dtype}; it must be integers")
        length = self.target_length if lengths else None
        if length is not None and not length.is_meta and not bool((length >= 1).all()):
            raise ValueError(f"target_length is {length.tolist()}; lengths must be at least 1")

    def _check_finite(self, names: Iterable[str] = _REAL) -> None:
        """Refuse real positions, times and coordinates that are NaN or infinite; whole numbers are not read.

        Those that `torch.func` maps cannot be read.

        Args:
            names: names of the fields.

        Raises:
            ValueError: if a number is not finite.

        Example:
            >>> from floater import Positions
            >>> Positions(torch.tensor([[torch.nan]]), torch.tensor([[0.5]]))
            Traceback (most recent call last):
            ValueError: the positions' query holds a NaN or an infinity
        """
        for name in _REAL:
            values = getattr(self, name) if name in names else None
            if values is None or not values.is_floating_point():
                continue
            if not torch._C._functorch.is_functorch_wrapped_tensor(values):
                require(values.isfinite(), f"the positions' {name} holds a NaN or an infinity")

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, name):
            raise AttributeError(f"the {name} of positions cannot be set: but({name}=...) returns others")
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        fields = {name: getattr(self, name) for name in self.__match_args__}
        values = ", ".join(f"{name}={value!r}" for name, value in fields.items() if value is not None)
        return f"{type(self).__name__}({values})"

    def but(self, **changes: Any) -> Self:
        """Return a copy with some fields changed; it keeps `below` and `starts` unless positions change.

        Example:
            >>> from floater import Positions
            >>> Positions.arange(2).but(token=torch.tensor([[7, 8]])).below
            2
        """
        changed = self._but(**changes)
        changed._check_finite(changes)
        return changed

    def _but(self, **changes: Any) -> Self:
        """Return such a copy without reading real numbers, which are computed from finite ones."""
        if unknown := changes.keys() - set(self.__match_args__):
            raise TypeError(f"positions have no {min(unknown)!r}")
        changed = object.__new__(type(self))
        for name in self.__match_args__:
            object.__setattr__(changed, name, widened(changes.get(name, getattr(self, name))))
        changed._check(lengths="target_length" in changes)  # reading old ones would wait for their device
        moves = changes.keys() & {"query", "key"}
        return changed._with_range(None if moves else self.below, None if moves else self.starts)

    def _with_range(self, below: int | None, starts: tuple[int, int] | None = None) -> Self:
        """Set what is known of the positions, of a new value only, and return the value."""
        object.__setattr__(self, "below", below)
        object.__setattr__(self, "starts", starts)
        return self

    @property
    def delta(self) -> Tensor:
        """Return the relative position key - query, (batch or 1, T, S): the library's one sign convention.

        Distances are grouped if `group` is given.

        Example:
            >>> from floater import Positions
            >>> Positions.arange(1, offset=2).delta.tolist()
            [[[-2, -1, 0]]]
        """
        return self.grouped(self.key[:, None, :] - self.query[:, :, None])

    def grouped(self, delta: Tensor) -> Tensor:
        """Return relative positions as `group` counts them.

        Example:
            >>> from floater import Positions
            >>> Positions.arange(1).but(group=(2, 3)).grouped(torch.tensor([-9, -4, 1, 5]))
            tensor([-4, -2,  1,  3])
        """
        if self.group is None:
            return delta
        near, size = self.group
        far = delta.abs()
        rounding = None if delta.is_floating_point() else "floor"
        beyond = near + (far - near).clamp(min=0).div(size, rounding_mode=rounding)
        return delta.sign() * torch.minimum(far, beyond)

    @property
    def counted_query(self) -> Tensor:
        """Return the positions of the queries for a reader on the CPU: counted there if `starts` is known.

        A copy from another device would wait for all its work. Else, and in compiled code, it is `query`.

        Example:
            >>> from floater import Positions
            >>> Positions.arange(2, offset=3, device="meta").counted_query
            tensor([[3, 4]])
        """
        if torch.compiler.is_compiling() or self.starts is None:
            return self.query
        first = self.starts[0]
        return torch.arange(first, first + self.query.shape[1], dtype=self.query.dtype)[None]

    @property
    def timed(self) -> Self:
        """Return the positions that an encoding of times reads: the times, or without any the positions.

        Example:
            >>> from floater import Positions
            >>> at = torch.tensor([[0.0, 2.5]])
            >>> Positions.arange(2).but(query_time=at, key_time=at).timed.query
            tensor([[0.0000, 2.5000]])
        """
        if self.query_time is None or self.key_time is None:
            return self
        return self._but(query=self.query_time, key=self.key_time, query_time=None, key_time=None)

    @property
    def keys_as_queries(self) -> Self:
        """Return positions whose queries are all the keys, without fields of the queries alone.

        Example:
            >>> from floater import Positions
            >>> Positions.arange(1, offset=2).keys_as_queries.query
            tensor([[0, 1, 2]])
        """
        changed = self._but(
            query=self.key, query_time=self.key_time, language=None, reordered=None, token=None
        )
        return changed._with_range(self.below, None if self.starts is None else (self.starts[1],) * 2)

    @property
    def batch(self) -> int:
        """Return the number of samples; 1 when all of a batch have the same positions.

        Example:
            >>> from floater import Positions
            >>> Positions.from_mask(torch.tensor([[0, 1], [1, 1]])).batch
            2
        """
        parts = [getattr(self, name) for name in self.__match_args__]
        tensors = [part.token_valid if isinstance(part, Structure) else part for part in parts]
        return max(len(tensor) for tensor in tensors if isinstance(tensor, Tensor))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """Return the positions on a device.

        Example:
            >>> from floater import Positions
            >>> Positions.arange(3).to("meta").key.device.type
            'meta'
        """
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def repeat(self, times: int) -> Self:
        """Repeat each sample a number of times, one after another, as for the hypotheses of a beam search.

        Example:
            >>> from floater import Positions
            >>> Positions.times(torch.tensor([[0.0, 0.5], [0.0, 2.5]])).repeat(2).query[:, 1].tolist()
            [0.5, 0.5, 2.5, 2.5]
        """
        return self._map(lambda tensor: tensor if len(tensor) == 1 else tensor.repeat_interleave(times, 0))

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {}
        for name in self.__match_args__:
            part = getattr(self, name)
            if isinstance(part, Structure):
                changed[name] = part.map(change)
            elif isinstance(part, Tensor):
                changed[name] = change(part)
        return self._but(**changed)._with_range(self.below, self.starts)

    @property
    def visible(self) -> Tensor | None:
        """Return the keys that a query may see, by padding and documents: bool, True = may; None for all.

        Returns:
            (batch or 1, S), with documents (batch or 1, T, S).

        Example:
            >>> from floater import Positions
            >>> Positions.packed([[2, 1]]).visible.int().tolist()
            [[[1, 1, 0], [1, 1, 0], [0, 0, 1]]]
        """
        if self.document is None:
            return self.key_valid
        query_documents = self.document[:, self.key.shape[1] - self.query.shape[1] :]
        same = query_documents[:, :, None] == self.document[:, None, :]
        return same if self.key_valid is None else same & self.key_valid[:, None, :]
