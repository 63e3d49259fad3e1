"""The positions of queries and keys as one value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from floater.positions.checks import check_shapes, query_count
from floater.positions.grids import grid_coordinates
from floater.positions.indices import document_ids, elapsed_positions, indices_in_documents, token_indices
from floater.positions.tracing import refuse_trace
from floater.structures import Structure, graphs, trees


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
        reordered: (batch or 1, T) second positions of the queries: the positions of their tokens in the order
            of another language.
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
        below: bound of the positions, which are then whole numbers from 0 to `below` - 1; None where it takes
            a look at them to know, which compiled code cannot take. `but` keeps it.
        starts: first query and first key, where both are known without a look at them to be consecutive
            integers, the same in all samples; else None. It is forgotten where `below` is, and by a pytree.

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
    starts: tuple[int, int] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._check()

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
        if lengths and self.target_length is not None and not bool((self.target_length >= 1).all()):
            raise ValueError(f"target_length is {self.target_length.tolist()}; lengths must be at least 1")

    def but(self, **changes: Any) -> Positions:
        """Return a copy with some fields changed; it keeps `below` and `starts` unless positions change.

        Example:
            >>> Positions.arange(2).but(token=torch.tensor([[7, 8]])).below
            2
        """
        if unknown := changes.keys() - set(self.__match_args__):
            raise TypeError(f"positions have no {min(unknown)!r}")
        changed = object.__new__(Positions)
        for name in self.__match_args__:
            object.__setattr__(changed, name, changes.get(name, getattr(self, name)))
        changed._check(lengths="target_length" in changes)  # a look at old ones would wait for their device
        moves = changes.keys() & {"query", "key"}
        return changed._with_range(None if moves else self.below, None if moves else self.starts)

    def _with_range(self, below: int | None, starts: tuple[int, int] | None = None) -> Positions:
        """Set what is known of the positions, of a new value only, and return the value."""
        object.__setattr__(self, "below", below)
        object.__setattr__(self, "starts", starts)
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
            >>> Positions.arange(2, offset=3, device="meta").counted_query
            tensor([[3, 4]])
        """
        if torch.compiler.is_compiling() or self.starts is None:
            return self.query
        return torch.arange(self.starts[0], self.starts[0] + self.query.shape[1], dtype=self.query.dtype)[
            None
        ]

    @property
    def timed(self) -> Positions:
        """Return the positions that an encoding of times reads: the times, or without any the positions.

        Example:
            >>> at = torch.tensor([[0.0, 2.5]])
            >>> Positions.arange(2).but(query_time=at, key_time=at).timed.query
            tensor([[0.0000, 2.5000]])
        """
        if self.query_time is None or self.key_time is None:
            return self
        return self.but(query=self.query_time, key=self.key_time, query_time=None, key_time=None)

    @property
    def keys_as_queries(self) -> Positions:
        """Return positions whose queries are all the keys, without fields of the queries alone.

        Example:
            >>> Positions.arange(1, offset=2).keys_as_queries.query
            tensor([[0, 1, 2]])
        """
        changed = self.but(
            query=self.key, query_time=self.key_time, language=None, reordered=None, token=None
        )
        return changed._with_range(self.below, None if self.starts is None else (self.starts[1],) * 2)

    @property
    def batch(self) -> int:
        """Return the number of samples; 1 when all of a batch have the same positions.

        Example:
            >>> Positions.from_mask(torch.tensor([[0, 1], [1, 1]])).batch
            2
        """
        parts = [getattr(self, name) for name in self.__match_args__]
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
        for name in self.__match_args__:
            part = getattr(self, name)
            if isinstance(part, Structure):
                changed[name] = part.map(change)
            elif isinstance(part, Tensor):
                changed[name] = change(part)
        return self.but(**changed)._with_range(self.below, self.starts)

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
        query_documents = self.document[:, self.key.shape[1] - self.query.shape[1] :]
        same = query_documents[:, :, None] == self.document[:, None, :]
        return same if self.key_valid is None else same & self.key_valid[:, None, :]

    @classmethod
    def arange(cls, length: int, *, offset: int = 0, device: torch.device | str | None = None) -> Positions:
        """Count `length` queries that come after `offset` earlier keys.

        Args:
            length: number of queries T.
            offset: number of keys before them (cached decoding); there are offset + T keys.
            device: device of the tensors.

        Returns:
            Positions shared by the batch: query (1, T), key (1, offset + T).

        Raises:
            ValueError: if `length` or `offset` is negative.

        Example:
            >>> step = Positions.arange(1, offset=4)
            >>> step.query.tolist(), step.key.tolist()
            ([[4]], [[0, 1, 2, 3, 4]])
        """
        if length < 0 or offset < 0:
            raise ValueError(f"length {length} and offset {offset} must not be negative")
        key = torch.arange(offset + length, device=device)[None]
        starts = (offset, 0) if length else None
        return cls(query=key[:, offset:], key=key)._with_range(offset + length, starts)

    @classmethod
    def from_mask(cls, mask: Tensor, *, queries: int | None = None) -> Positions:
        """Give each token its index among the unpadded tokens of its row.

        Padding may be on the left, on the right, or between; it has the position of some token of the batch.
        The samples of a batch that is padded on the right only share one row of positions, 0, 1, 2, ...;
        compiled code cannot look at the mask, and has a row for each sample.

        Args:
            mask: (batch, S), non-zero where there is a token.
            queries: number of queries, the last columns (cached decoding); None means all.

        Returns:
            Positions: query (batch or 1, T), key (batch or 1, S), key_valid (batch, S) or None.

        Raises:
            ValueError: if the mask is not (batch, S), or has fewer columns than there are queries.

        Example:
            >>> Positions.from_mask(torch.tensor([[0, 0, 1, 1]])).query.tolist()
            [[0, 0, 0, 1]]
            >>> Positions.from_mask(torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])).query.tolist()
            [[0, 1, 2, 3]]
        """
        if mask.ndim != 2:
            raise ValueError(f"the mask is {tuple(mask.shape)}; it must be (batch, length)")
        length = mask.shape[1]
        queries = query_count(queries, length, "the mask has")
        valid = mask.bool()
        offset = length - queries
        key, last = (None, None) if 0 in valid.shape else token_indices(valid)
        if key is None:
            return cls.arange(queries, offset=offset, device=mask.device)
        starts = (offset, 0) if last == length - 1 and len(key) == 1 and queries else None
        below = length if last is None else last + 1
        return cls(query=key[:, offset:], key=key, key_valid=valid)._with_range(below, starts)

    @classmethod
    def packed(
        cls, lengths: Sequence[Sequence[int]], *, device: torch.device | str | None = None
    ) -> Positions:
        """Pack documents into rows, one after the other; positions start at 0 in each.

        Args:
            lengths: the lengths of the documents of each row; rows are padded on the right.
            device: device of the tensors.

        Returns:
            Positions as of `from_documents`.

        Raises:
            ValueError: if a length is below 1.

        Example:
            >>> positions = Positions.packed([[2, 3], [4]])
            >>> positions.query.tolist(), positions.document[0].tolist()
            ([[0, 1, 0, 1, 2], [0, 1, 2, 3, 3]], [0, 0, 1, 1, 1])
        """
        if any(length < 1 for row in lengths for length in row):
            raise ValueError(
                f"documents have the lengths {list(map(list, lengths))}; each must be at least 1"
            )
        ids, mask = document_ids(lengths, device)
        return cls.from_documents(ids, mask=mask)

    @classmethod
    def from_documents(
        cls, ids: Tensor, *, mask: Tensor | None = None, queries: int | None = None
    ) -> Positions:
        """Give each token its index among the unpadded tokens of its document.

        Args:
            ids: (batch, S) integer ids; a run of equal ids is a document, and an id that comes back later in
                the row is another document.
            mask: (batch, S), non-zero where there is a token; None when all are tokens.
            queries: number of queries, the last columns (cached decoding); None means all.

        Returns:
            Positions: query (batch, T), key (batch, S), key_valid (batch, S) or None, document (batch, S).

        Raises:
            ValueError: if ids and mask are not (batch, S) both, or there are fewer columns than queries.

        Example:
            >>> Positions.from_documents(torch.tensor([[7, 7, 4, 4, 7]])).key.tolist()
            [[0, 1, 0, 1, 0]]
        """
        valid = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        if ids.ndim != 2 or valid.shape != ids.shape:
            raise ValueError(
                f"document ids are {tuple(ids.shape)}, the mask {tuple(valid.shape)}; "
                "they must be (batch, length)"
            )
        length = ids.shape[1]
        queries = query_count(queries, length, "the ids have")
        key, document = indices_in_documents(ids, valid)
        whole, last = False, length - 1
        if key.numel() and not torch.compiler.is_compiling():
            whole, last = torch.stack((valid.all().long(), key.max())).tolist()
        key_valid = None if whole else valid
        positions = cls(key[:, length - queries :], key, key_valid, document=document)
        return positions._with_range(last + 1)

    @classmethod
    def times(cls, times: Tensor, mask: Tensor | None = None) -> Positions:
        """Place queries and keys at the same real positions, such as the times of events.

        Args:
            times: (batch or 1, T), in tokens or in any unit that the position model expects.
            mask: (batch or 1, T), non-zero where there is an event.

        Returns:
            Positions: query and key (batch or 1, T).

        Raises:
            ValueError: if a time is NaN or infinite, or the shapes do not fit together.

        Example:
            >>> Positions.times(torch.tensor([[0.0, 0.5, 3.2]])).query.tolist()[0][1]
            0.5
        """
        if not bool(torch.isfinite(times).all()):
            raise ValueError("times hold a NaN or an infinity; every time must be finite")
        return cls(query=times, key=times, key_valid=None if mask is None else mask.bool())

    @classmethod
    def events(
        cls, times: Tensor, mask: Tensor | None = None, *, time_per_position: float = 1.0
    ) -> Positions:
        """Place events at their times: float64, counted from the first of each row.

        A shift of all times of a row changes nothing. Unix timestamps that differ by a second give distinct
        positions, however long after the first event; float32, which rounds them to minutes, is refused.

        Args:
            times: (batch or 1, T) integer or float64; those of a row do not decrease, and may repeat.
            mask: (batch or 1, T), non-zero where there is an event; padding has the time of the last event
                before it does.
            time_per_position: the time from one position to the next, such as the median time between two
                events.

        Returns:
            Positions: query and key (batch or 1, T), float64, from 0.

        Raises:
            ValueError: if a time is NaN or infinite or earlier than one before it (with its row and index),
                times are of lower precision, `time_per_position` is not positive, or shapes do not fit.

        Example:
            >>> times = torch.tensor([[1325476708, 1325476709, 1325476712]])
            >>> Positions.events(times, time_per_position=2.0).query
            tensor([[0.0000, 0.5000, 2.0000]], dtype=torch.float64)
        """
        valid = None if mask is None else mask.bool()
        at = elapsed_positions(times, valid, time_per_position)
        return cls(query=at, key=at, key_valid=valid)

    @classmethod
    def tree(
        cls,
        parents: Sequence[Sequence[int] | Tensor],
        *,
        labels: Sequence[Sequence[int] | Tensor] | None = None,
        words: Sequence[Sequence[int] | Tensor] | None = None,
        device: torch.device | str | None = None,
    ) -> Positions:
        """Place tokens on a batch of trees, in the order of the tokens and padded on the right.

        Args:
            parents: the index of each node's parent, -1 for the root, for each tree.
            labels: the label of the edge from each node's parent to the node, from 0, for each tree.
            words: the node that each token belongs to, for trees over words whose tokens are subwords; -1 is
                padding, on any side. None: token i is node i.
            device: device of the tensors.

        Returns:
            Positions as of `from_mask`, with a `structure`.

        Raises:
            ValueError: if a tree has no root, two roots or a cycle, or an index is out of range.

        Example:
            >>> positions = Positions.tree([[1, -1, 1], [-1, 0]])
            >>> positions.structure.depth.tolist(), positions.key_valid[1].tolist()
            ([[1, 0, 1], [0, 1, 0]], [True, True, False])
        """
        return cls._over(trees(parents, labels=labels, words=words, device=device))

    @classmethod
    def graph(
        cls,
        batch: Any,
        *,
        sizes: Sequence[int] | None = None,
        labels: Sequence[Sequence[int] | Tensor] | None = None,
        directed: bool = True,
        words: Sequence[Sequence[int] | Tensor] | None = None,
        device: torch.device | str | None = None,
    ) -> Positions:
        """Place tokens on a batch of graphs, in the order of the tokens and padded on the right.

        Args:
            batch: the graphs, each a networkx graph, an `edge_index` tensor (2, E), or a list of pairs
                (source, target) or triples (source, target, label); see `floater.structures.graphs`.
            sizes: number of nodes of each graph; None counts to the highest node that has an edge.
            labels: the label of each edge, from 0, for each graph.
            directed: False adds every edge's reverse.
            words: the node that each token belongs to; see `tree`.
            device: device of the tensors.

        Returns:
            Positions as of `from_mask`, with a `structure`.

        Raises:
            ValueError: if a node or label is out of range, or an edge is given twice with different labels.

        Example:
            >>> positions = Positions.graph([[(0, 1), (2, 1)]])
            >>> positions.structure.distance[0].tolist()
            [[0, 1, -1], [-1, 0, -1], [-1, 1, 0]]
        """
        return cls._over(
            graphs(batch, sizes=sizes, labels=labels, directed=directed, words=words, device=device)
        )

    @classmethod
    def _over(cls, structure: Structure) -> Positions:
        return cls.from_mask(structure.token_valid).but(structure=structure)

    @classmethod
    def grid(
        cls,
        *sizes: int,
        like: Sequence[int] | None = None,
        device: torch.device | str | None = None,
    ) -> Positions:
        """Count the patches of an image (h, w) or of a video (t, h, w), row by row.

        Args:
            sizes: number of patches along each axis.
            like: sizes of the grid to whose coordinates these are scaled; see `grids.grid_coordinates`.
            device: device of the tensors.

        Returns:
            Positions of all patches, 0, 1, ..., with their `coordinates`.

        Raises:
            ValueError: if a size is below 1, or `like` has another number of axes.

        Example:
            >>> positions = Positions.grid(2, 2)
            >>> positions.query.tolist(), positions.coordinates.tolist()
            ([[0, 1, 2, 3]], [[[0, 0], [0, 1], [1, 0], [1, 1]]])
        """
        coordinates = grid_coordinates(sizes, like, device)
        return cls.arange(coordinates.shape[1], device=device).but(coordinates=coordinates)


# FSDP2's mixed precision casts the tensors of dataclasses: in bfloat16 positions from 256 on are rounded.
del Positions.__dataclass_fields__
