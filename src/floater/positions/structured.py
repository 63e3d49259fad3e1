"""Constructors of positions over trees, graphs and grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from floater.positions.grids import grid_coordinates
from floater.structures import Structure, graphs, trees

if TYPE_CHECKING:
    from floater.positions.value import Positions


def tree(
    cls: type[Positions],
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
        >>> from floater.positions import Positions
        >>> positions = Positions.tree([[1, -1, 1], [-1, 0]])
        >>> positions.structure.depth.tolist(), positions.key_valid[1].tolist()
        ([[1, 0, 1], [0, 1, 0]], [True, True, False])
    """
    return _over(cls, trees(parents, labels=labels, words=words, device=device))


def graph(
    cls: type[Positions],
    given: Any,
    *,
    sizes: Sequence[int] | None = None,
    labels: Sequence[Sequence[int] | Tensor] | None = None,
    directed: bool = True,
    words: Sequence[Sequence[int] | Tensor] | None = None,
    device: torch.device | str | None = None,
) -> Positions:
    """Place tokens on a batch of graphs, in the order of the tokens and padded on the right.

    Args:
        given: the graphs, each a networkx graph, an `edge_index` tensor (2, E), or a list of pairs
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
        >>> from floater.positions import Positions
        >>> positions = Positions.graph([[(0, 1), (2, 1)]])
        >>> positions.structure.distance[0].tolist()
        [[0, 1, -1], [-1, 0, -1], [-1, 1, 0]]
    """
    return _over(
        cls, graphs(given, sizes=sizes, labels=labels, directed=directed, words=words, device=device)
    )


def _over(cls: type[Positions], structure: Structure) -> Positions:
    places = cls.from_mask(structure.token_valid)
    return cls(places.query, places.key, places.key_valid, structure=structure)


def grid(
    cls: type[Positions],
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
        >>> from floater.positions import Positions
        >>> positions = Positions.grid(2, 2)
        >>> positions.query.tolist(), positions.coordinates.tolist()
        ([[0, 1, 2, 3]], [[[0, 0], [0, 1], [1, 0], [1, 1]]])
    """
    coordinates = grid_coordinates(sizes, like, device)
    return cls.arange(coordinates.shape[1], device=device).but(coordinates=coordinates)
