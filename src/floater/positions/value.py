"""The positions of queries and keys as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from floater.positions import instants, sequences, structured
from floater.positions.tracing import refuse_trace
from floater.structures import Structure


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Positions:
    """The positions of the queries and keys of an attention; a plain value, built once per forward pass.

    Positions are integers (token indices) or real numbers (times). A leading size of 1 means that all
    samples of the batch have the same positions.

    Args:
        query: (batch or 1, T) positions of the queries.
        key: (batch or 1, S) positions of the keys.
        key_valid: (batch or 1, S) bool, False where a key is padding; None when every key is a token.
        special: (batch or 1, S) bool, True at a token that represents the whole, such as [CLS], and that a
            model may untie from positions; None when no token does.
        target_length: (batch or 1,) length of the finished text, for models that count down to its end.
        language: (batch or 1, T) integer ids of the languages that the queries are written in.
        reordered: (batch or 1, T) second positions of the queries: those of their tokens in the order of
            another language.
        structure: trees or graphs over the S keys, for the position models that read them.
        token: (batch or 1, T) integer ids of the tokens that are the queries, for models that treat each word
            in its own way.
        segment: (batch or 1, S) integer ids of the parts of an input, such as two sentences, that keys
            belong to; the queries are the last T of the S keys.
        document: (batch or 1, S) integer ids of the documents that share a row; a query attends to keys of
            its own document only. The queries are the last T of the S keys.
        query_time: (batch or 1, T) times of the queries for encodings that read times instead of positions
            (`PositionModel.reads_times`); None when these are the positions.
        key_time: (batch or 1, S) times of the keys; given if and only if `query_time` is.
        coordinates: (batch or 1, S, axes) positions of the keys on the axes of a grid, for models that read
            them; the queries are the last T of the S keys.
        group: w and G: distances d above w count as w + (d - w) / G, rounded down for whole positions; None
            for true distances.

    Attributes:
        below: All positions are whole numbers from 0 to `below` - 1; None where that is not known without
            looking at them, which compiled code cannot. `dataclasses.replace` forgets it, `but` keeps it.

    Raises:
        ValueError: if the shapes do not fit together, or ids are no integers.

    Example:
        >>> positions = Positions.arange(3)
        >>> positions.query.tolist()
        [[0, 1, 2]]
        >>> positions.delta[0].tolist()
        [[0, 1, 2], [-1, 0, 1], [-2, -1, 0]]
    """

    query: Tensor
    key: Tensor
    key_valid: Tensor | None = None
    special: Tensor | None = None
    target_length: Tensor | None = None
    language: Tensor | None = None
    reordered: Tensor | None = None
    structure: Structure | None = None
    document: Tensor | None = None
    token: Tensor | None = None
    segment: Tensor | None = None
    query_time: Tensor | None = None
    key_time: Tensor | None = None
    coordinates: Tensor | None = None
    group: tuple[int, int] | None = None
    # Not an argument: copied by `replace`, it would outlive the positions that it is true of.
    below: int | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        refuse_trace(ValueError, "a model with positions", "use torch.export, with a flow after bake")
        masks = {"key_valid": self.key_valid, "special": self.special}
        nodes = None if self.structure is None else self.structure.token_valid
        of_query = {"language": self.language, "reordered": self.reordered, "token": self.token}
        of_key = {"document": self.document, "segment": self.segment}
        if (self.query_time is None) != (self.key_time is None):
            raise ValueError("give query_time and key_time both or neither")
        queries = {"query": self.query, **of_query, "query_time": self.query_time}
        axis = None if self.coordinates is None else self.coordinates.select(-1, 0)
        places = {"coordinates": axis, "key_time": self.key_time}
        keys = {"key": self.key, **masks, "structure": nodes, **of_key, **places}
        given = {**queries, **keys, "target_length": self.target_length}
        shapes = {name: tuple(value.shape) for name, value in given.items() if value is not None}
        for name, shape in shapes.items():
            wanted = "(batch or 1,)" if name == "target_length" else "(batch or 1, length)"
            if len(shape) != (1 if name == "target_length" else 2):
                raise ValueError(f"{name} is {shape}; it must be {wanted}")
        batches = [shape[0] for shape in shapes.values() if shape[0] != 1]  # symbols have no hash
        if any(size != batches[0] for size in batches):
            raise ValueError(f"the batch sizes differ: {shapes}; they must be equal or 1")
        for what, group, length in (
            ("queries", queries, self.query.shape[1]),
            ("keys", keys, self.key.shape[1]),
        ):
            for name in group.keys() & shapes.keys():
                if shapes[name][1] != length:
                    raise ValueError(f"{name} covers {shapes[name][1]} {what}; there are {length}")
        for name, mask in masks.items():
            if mask is not None and mask.dtype != torch.bool:
                raise ValueError(f"{name} is {mask.dtype}; it must be bool")
        for name in ("language", "token", *of_key):
            ids = (of_query | of_key)[name]
            if ids is not None and (ids.is_floating_point() or ids.is_complex()):
                raise ValueError(f"{name} is {ids.dtype}; it must be integers")
        if self.target_length is not None and not bool((self.target_length >= 1).all()):
            raise ValueError(f"target_length is {self.target_length.tolist()}; lengths must be at least 1")

    def but(self, **changes: Any) -> Positions:
        """Return a copy with some fields changed, which keeps `below` where the positions stay.

        Example:
            >>> Positions.arange(2).but(token=torch.tensor([[7, 8]])).below
            2
        """
        changed = replace(self, **changes)
        return changed if changes.keys() & {"query", "key"} else changed._below(self.below)

    def _below(self, bound: int | None) -> Positions:
        """Note a bound of the positions; called on a new value only."""
        object.__setattr__(self, "below", bound)
        return self

    @property
    def delta(self) -> Tensor:
        """Return the relative position key - query, (batch or 1, T, S): the library's one sign convention.

        Distances are grouped if `group` is given.

        Example:
            >>> Positions.arange(1, offset=2).delta.tolist()
            [[[-2, -1, 0]]]
        """
        return self.grouped(self.key[:, None, :] - self.query[:, :, None])

    def grouped(self, delta: Tensor) -> Tensor:
        """Return relative positions as `group` counts them.

        Example:
            >>> replace(Positions.arange(1), group=(2, 3)).grouped(torch.tensor([-9, -4, 1, 5]))
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
    def timed(self) -> Positions:
        """Return the positions that an encoding of times reads: the times, else the positions themselves.

        Example:
            >>> at = torch.tensor([[0.0, 2.5]])
            >>> replace(Positions.arange(2), query_time=at, key_time=at).timed.query
            tensor([[0.0000, 2.5000]])
        """
        if self.query_time is None or self.key_time is None:
            return self
        return replace(self, query=self.query_time, key=self.key_time, query_time=None, key_time=None)

    @property
    def of_keys(self) -> Positions:
        """Return positions whose queries are all the keys, without what is known of the queries alone.

        Example:
            >>> Positions.arange(1, offset=2).of_keys.query
            tensor([[0, 1, 2]])
        """
        changed = replace(
            self, query=self.key, query_time=self.key_time, language=None, reordered=None, token=None
        )
        return changed._below(self.below)

    @property
    def batch(self) -> int:
        """Return the number of samples; 1 when all of a batch have the same positions.

        Example:
            >>> Positions.from_mask(torch.tensor([[0, 1], [1, 1]])).batch
            2
        """
        parts = [getattr(self, each.name) for each in fields(self)]
        tensors = [part.token_valid if isinstance(part, Structure) else part for part in parts]
        return max(len(tensor) for tensor in tensors if isinstance(tensor, Tensor))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Positions:
        """Return the positions on a device.

        Example:
            >>> Positions.arange(3).to("meta").key.device.type
            'meta'
        """
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def repeat(self, times: int) -> Positions:
        """Repeat each sample a number of times, one after another, as for the hypotheses of a beam search.

        Example:
            >>> Positions.times(torch.tensor([[0.0, 0.5], [0.0, 2.5]])).repeat(2).query[:, 1].tolist()
            [0.5, 0.5, 2.5, 2.5]
        """
        return self._map(lambda tensor: tensor if len(tensor) == 1 else tensor.repeat_interleave(times, 0))

    def _map(self, change: Callable[[Tensor], Tensor]) -> Positions:
        changed: dict[str, Any] = {}
        for each in fields(self):
            part = getattr(self, each.name)
            if isinstance(part, Structure):
                changed[each.name] = part.map(change)
            elif isinstance(part, Tensor):
                changed[each.name] = change(part)
        return replace(self, **changed)._below(self.below)

    @property
    def visible(self) -> Tensor | None:
        """Return the keys that a query may see, by padding and documents: bool, True = may; None for all.

        Returns:
            (batch or 1, S), with documents (batch or 1, T, S).

        Example:
            >>> Positions.packed([[2, 1]]).visible.int().tolist()
            [[[1, 1, 0], [1, 1, 0], [0, 0, 1]]]
        """
        if self.document is None:
            return self.key_valid
        of_query = self.document[:, self.key.shape[1] - self.query.shape[1] :]
        same = of_query[:, :, None] == self.document[:, None, :]
        return same if self.key_valid is None else same & self.key_valid[:, None, :]

    arange = classmethod(sequences.arange)
    from_mask = classmethod(sequences.from_mask)
    packed = classmethod(sequences.packed)
    from_documents = classmethod(sequences.from_documents)
    times = classmethod(instants.times)
    events = classmethod(instants.events)
    tree = classmethod(structured.tree)
    graph = classmethod(structured.graph)
    grid = classmethod(structured.grid)
