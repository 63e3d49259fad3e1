"""The positions of queries and keys as one value, with a constructor for each kind of positions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from floater.positions.checks import query_count
from floater.positions.fields import PositionFields
from floater.positions.grids import grid_coordinates
from floater.positions.indices import document_ids, elapsed_positions, indices_in_documents, token_indices
from floater.structures import Structure, graphs, trees


class Positions(PositionFields):
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
        starts: first query and first key, where both are known without reading them to be consecutive
            integers, the same in all samples; else None. It is forgotten where `below` is, and by a pytree.

    Raises:
        ValueError: if the shapes do not fit together, ids are not integers, or a real position, time or
            coordinate is NaN or infinite.

    Example:
        >>> positions = Positions.arange(3)
        >>> positions.query.tolist()
        [[0, 1, 2]]
        >>> positions.delta[0].tolist()
        [[0, 1, 2], [-1, 0, 1], [-2, -1, 0]]
    """

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
    def from_cu_seqlens(cls, cu_seqlens: Tensor) -> Positions:
        """Pack documents into one row by their cumulative lengths, FlashAttention's `cu_seqlens`.

        Args:
            cu_seqlens: (documents + 1,) integers: 0, and the end of each document.

        Returns:
            Positions as of `from_documents`, on the device of the lengths.

        Raises:
            ValueError: if the lengths are not integers (documents + 1,), or do not rise from 0.

        Example:
            >>> positions = Positions.from_cu_seqlens(torch.tensor([0, 2, 5], dtype=torch.int32))
            >>> positions.query.tolist(), positions.document.tolist()
            ([[0, 1, 0, 1, 2]], [[0, 0, 1, 1, 1]])
        """
        if cu_seqlens.ndim != 1 or len(cu_seqlens) < 2 or cu_seqlens.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"cu_seqlens is {tuple(cu_seqlens.shape)} of {cu_seqlens.dtype}; it must be (documents + 1,) "
                "of torch.int32"
            )
        ends = cu_seqlens.tolist()
        if ends[0] or any(end <= begin for begin, end in pairwise(ends)):
            raise ValueError(f"cu_seqlens are {ends}; they must begin at 0 and rise")
        lengths = [end - begin for begin, end in pairwise(ends)]
        return cls.packed([lengths], device=cu_seqlens.device)

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
