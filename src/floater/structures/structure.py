"""A tree or a graph over the tokens of each row of a batch, built from parents, edges or networkx graphs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any

import torch
from torch import Tensor

from floater.structures.graph_features import distances
from floater.structures.tree_features import ancestors, child_index, common_ancestors, depths

Device = torch.device | str | None


def _feature(derive: Callable[[Structure], Tensor]) -> cached_property[Tensor]:
    """Return a property that is derived once, on the CPU, and kept on the structure's device."""

    @wraps(derive)
    def feature(structure: Structure) -> Tensor:
        if structure.edges.device.type == "cpu":
            return derive(structure)
        kept: Tensor = getattr(structure.on_cpu, derive.__name__)
        return kept.to(structure.edges.device)

    return cached_property(feature)


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Structure:
    """A batch of graphs, padded; a tree is a graph with an edge from each parent to each child.

    Features that are derived from it are computed once and kept, for all position models that read them. N is
    the number of nodes, T the number of tokens; without `words` token i is node i.

    Args:
        edges: (batch, N, N) integers, from row to column: 0 where there is no edge, else its label plus 1.
        valid: (batch, N) bool, False where a node is padding.
        parents: (batch, N), -1 at the root and at padding; None if the graphs are not given as trees.
        words: (batch, T), the node that each token belongs to (subwords), -1 where a token is padding.

    Example:
        >>> tree = trees([[1, -1, 1]])
        >>> tree.depth.tolist(), tree.distance[0].tolist()
        ([[1, 0, 1]], [[0, -1, -1], [1, 0, 1], [-1, -1, 0]])
    """

    edges: Tensor
    valid: Tensor
    parents: Tensor | None = None
    words: Tensor | None = None

    @property
    def on_cpu(self) -> Structure:
        """Return the structure on the CPU, where features are derived: their loops look at tensors often.

        A structure that was moved from there keeps it, so that no device is waited for.
        """
        if self.edges.device.type == "cpu":
            return self
        if (kept := self.__dict__.get("_on_cpu")) is None:
            kept = self.map(lambda tensor: tensor.to("cpu"))
            object.__setattr__(self, "_on_cpu", kept)
        return kept

    @property
    def token_valid(self) -> Tensor:
        """Return (batch, T) bool, False where a token is padding."""
        return self.valid if self.words is None else self.words >= 0

    def map(self, change: Callable[[Tensor], Tensor]) -> Structure:
        """Return the graphs with a function applied to every tensor, such as a move to another device."""
        parents, words = (None if part is None else change(part) for part in (self.parents, self.words))
        changed = Structure(change(self.edges), change(self.valid), parents, words)
        if self.edges.device.type == "cpu" and changed.edges.device.type != "cpu":
            object.__setattr__(changed, "_on_cpu", self)
        return changed

    def at(self, values: Tensor) -> Tensor:
        """Return values of nodes (batch, N, ...) as values of tokens (batch, T, ...)."""
        if self.words is None:
            return values
        batch = torch.arange(len(values), device=values.device)[:, None]
        return values[batch, self.words.clamp(min=0)]

    def between(self, values: Tensor) -> Tensor:
        """Return values of pairs of nodes (batch, N, N) as values of pairs of tokens (batch, T, T)."""
        return self.at(self.at(values).transpose(1, 2)).transpose(1, 2)

    @_feature
    def depth(self) -> Tensor:
        """Return `depths`."""
        return depths(self.ancestors)

    @_feature
    def ancestors(self) -> Tensor:
        """Return `ancestors`."""
        return ancestors(self._parents, self.valid)

    @_feature
    def common_ancestors(self) -> Tensor:
        """Return `common_ancestors`."""
        return common_ancestors(self.ancestors, self.valid)

    @_feature
    def child_index(self) -> Tensor:
        """Return `child_index`."""
        return child_index(self._parents)

    @cached_property
    def neighbours(self) -> Tensor:
        """Return whether two nodes share an edge of either direction, (batch, N, N) bool."""
        return (self.edges > 0) | (self.edges > 0).transpose(1, 2)

    @_feature
    def distance(self) -> Tensor:
        """Return the number of edges on a shortest path along their directions; see `distances`."""
        return distances(self.edges > 0)

    @property
    def _parents(self) -> Tensor:
        if self.parents is None:
            raise ValueError("the graphs are not given as trees; Positions.tree(parents) does")
        return self.parents


def trees(
    parents: Sequence[Sequence[int] | Tensor],
    *,
    labels: Sequence[Sequence[int] | Tensor] | None = None,
    words: Sequence[Sequence[int] | Tensor] | None = None,
    device: Device = None,
) -> Structure:
    """Return a batch of trees from the parents of their nodes, padded on the right.

    Args:
        parents: for each tree, the index of each node's parent, -1 for the root.
        labels: for each tree, the label of the edge from a node's parent to the node, from 0; None means 0.
        words: for each tree, the node that each token belongs to, -1 for padding; None: token i is node i.
        device: device of the tensors.

    Raises:
        ValueError: if a tree has no root, two roots or a cycle, or an index is out of range.

    Example:
        >>> trees([[-1, 0], [1, -1, 1]]).parents.tolist()
        [[-1, 0, -1], [1, -1, 1]]
        >>> trees([[-1, 2, 1]])
        Traceback (most recent call last):
        ValueError: tree 0 has a cycle: node 1 is its own ancestor, 1 -> 2 -> 1
    """
    rows = [_integers(row) for row in parents]
    kinds = _aligned(labels, rows) if labels is not None else [[0] * len(row) for row in rows]
    edge_lists: list[list[tuple[int, int, int]]] = []
    for sample, (row, kind) in enumerate(zip(rows, kinds, strict=True)):
        _check_tree(sample, row)
        edge_lists.append([(p, node, k) for node, (p, k) in enumerate(zip(row, kind, strict=True)) if p >= 0])
    edges, valid = _dense(edge_lists, [len(row) for row in rows], "tree")
    owners = _words(words, [len(row) for row in rows], "tree")
    return Structure(edges, valid, _padded(rows), owners).map(lambda tensor: tensor.to(device))


def graphs(
    batch: Any,
    *,
    sizes: Sequence[int] | None = None,
    labels: Sequence[Sequence[int] | Tensor] | None = None,
    directed: bool = True,
    words: Sequence[Sequence[int] | Tensor] | None = None,
    device: Device = None,
) -> Structure:
    """Return a batch of graphs, padded on the right.

    Args:
        batch: the graphs, each a networkx graph (its nodes count in their own order, its edges may carry an
            integer attribute "label"), an `edge_index` tensor (2, E) of sources and targets, or a list of
            pairs (source, target) or triples (source, target, label). A single networkx graph or tensor is a
            batch of one.
        sizes: number of nodes of each graph; None counts to the highest node that has an edge. A networkx
            graph has its own.
        labels: for each graph, the label of each edge, from 0; None means those given with the edges, else 0.
        directed: False adds every edge's reverse, with the same label; undirected networkx graphs have both.
        words: for each graph, the node that each token belongs to, -1 for padding; None: token i is node i.
        device: device of the tensors.

    Raises:
        ValueError: if a node or label is out of range, or an edge is given twice with different labels.

    Example:
        >>> graphs([[(0, 1), (1, 2)]], sizes=[4]).distance[0, 0].tolist()
        [0, 1, 2, -1]
        >>> graphs([[(0, 3)]], sizes=[3])
        Traceback (most recent call last):
        ValueError: graph 0 has an edge 0 -> 3; its nodes are 0 to 2
    """
    if isinstance(batch, Tensor) or _is_networkx(batch):
        batch = [batch]
    edge_lists: list[list[tuple[int, int, int]]] = []
    counts: list[int] = []
    sizes = None if sizes is None else _integers(sizes)
    for sample, graph in enumerate(batch):
        triples, count, both = _triples(graph)
        if sizes is not None:
            if len(sizes) != len(batch):
                raise ValueError(f"there are {len(sizes)} sizes for {len(batch)} graphs")
            count = sizes[sample]
        if labels is not None:
            if len(labels) != len(batch):
                raise ValueError(f"there are labels of {len(labels)} graphs for {len(batch)} graphs")
            graph_labels = _integers(labels[sample])
            if len(graph_labels) != len(triples):
                raise ValueError(f"graph {sample} has {len(triples)} edges and {len(graph_labels)} labels")
            triples = [(u, v, k) for (u, v, _), k in zip(triples, graph_labels, strict=True)]
        for u, v, _ in triples:
            if not (0 <= u < count and 0 <= v < count):
                raise ValueError(f"graph {sample} has an edge {u} -> {v}; its nodes are 0 to {count - 1}")
        edge_lists.append(triples if directed and not both else triples + [(v, u, k) for u, v, k in triples])
        counts.append(count)
    edges, valid = _dense(edge_lists, counts, "graph")
    owners = _words(words, counts, "graph")
    return Structure(edges, valid, words=owners).map(lambda tensor: tensor.to(device))


def _integers(row: Iterable[Any]) -> list[int]:
    values = row.tolist() if isinstance(row, Tensor) else row
    try:
        return [operator.index(value) for value in values]  # of NumPy, too
    except TypeError:
        raise ValueError(
            f"{values!r} is not a list of integers; trees, graphs, sizes, labels and words are lists with an "
            "entry for each of a batch"
        ) from None


def _aligned(labels: Sequence[Any], rows: list[list[int]]) -> list[list[int]]:
    label_rows = [_integers(row) for row in labels]
    if len(label_rows) != len(rows):
        raise ValueError(f"there are labels of {len(label_rows)} trees for {len(rows)} trees")
    for sample, (kinds, row) in enumerate(zip(label_rows, rows, strict=True)):
        if len(kinds) != len(row):
            raise ValueError(f"tree {sample} has {len(row)} nodes and {len(kinds)} labels")
    return label_rows


def _check_tree(sample: int, row: list[int]) -> None:
    for node, parent in enumerate(row):
        if not -1 <= parent < len(row):
            raise ValueError(
                f"tree {sample}: node {node} has parent {parent}; nodes are 0 to {len(row) - 1}, the root's "
                "parent is -1"
            )
    roots = [node for node, parent in enumerate(row) if parent < 0]
    if len(roots) > 1:
        raise ValueError(f"tree {sample} has {len(roots)} roots: nodes {', '.join(map(str, roots))}")
    if row and not roots:
        raise ValueError(f"tree {sample} has no root: no node's parent is -1")
    done = set(roots)
    for start in range(len(row)):
        way = [start]
        while way[-1] not in done:
            way.append(row[way[-1]])
            if way[-1] in way[:-1]:
                cycle = way[way.index(way[-1]) :]
                raise ValueError(
                    f"tree {sample} has a cycle: node {cycle[0]} is its own ancestor, "
                    f"{' -> '.join(map(str, cycle))}"
                )
        done.update(way)


def _is_networkx(graph: Any) -> bool:
    return hasattr(graph, "adjacency") and hasattr(graph, "is_directed")


def _triples(graph: Any) -> tuple[list[tuple[int, int, int]], int, bool]:
    """Return (source, target, label) of a graph, its number of nodes, and whether edges run both ways."""
    if _is_networkx(graph):
        index = {node: i for i, node in enumerate(graph.nodes)}
        triples = []
        for u, v, label in graph.edges(data="label", default=0):
            try:
                triples.append((index[u], index[v], operator.index(label)))  # of NumPy, too
            except TypeError:
                raise ValueError(
                    f"the edge {u} -> {v} has the label {label!r}; labels are integers from 0"
                ) from None
        return triples, len(index), not graph.is_directed()
    if hasattr(graph, "shape"):
        if len(graph.shape) != 2 or graph.shape[0] != 2:
            raise ValueError(f"edge_index is {tuple(graph.shape)}; it must be (2, edges)")
        graph = graph.T.tolist()
    pairs = [_integers(edge) for edge in graph]
    if wrong := [pair for pair in pairs if len(pair) not in (2, 3)]:
        raise ValueError(f"the edge {tuple(wrong[0])} is not (source, target) or (source, target, label)")
    triples = [(pair[0], pair[1], pair[2] if len(pair) == 3 else 0) for pair in pairs]
    return triples, max((max(u, v) + 1 for u, v, _ in triples), default=0), False


def _dense(
    edge_lists: list[list[tuple[int, int, int]]], sizes: list[int], what: str
) -> tuple[Tensor, Tensor]:
    """Return edges (batch, N, N) and valid nodes (batch, N)."""
    nodes = max(sizes, default=0)
    valid = torch.arange(nodes) < torch.tensor(sizes, dtype=torch.long).view(-1, 1)
    edges = torch.zeros(len(sizes), nodes, nodes, dtype=torch.long)
    for sample, triples in enumerate(edge_lists):
        edge_labels: dict[tuple[int, int], int] = {}
        for u, v, k in triples:
            if k < 0:
                raise ValueError(f"{what} {sample}: the edge {u} -> {v} has label {k}; labels are from 0")
            if edge_labels.setdefault((u, v), k) != k:
                raise ValueError(
                    f"{what} {sample} has the edge {u} -> {v} twice, with labels {edge_labels[u, v]} and {k}"
                )
        if edge_labels:
            source, target = torch.tensor(list(edge_labels)).T
            edges[sample, source, target] = torch.tensor(list(edge_labels.values())) + 1
    return edges, valid


def _padded(rows: list[list[int]]) -> Tensor:
    longest = max(map(len, rows), default=0)
    padded = [row + [-1] * (longest - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.long).view(len(rows), longest)


def _words(words: Sequence[Any] | None, sizes: list[int], what: str) -> Tensor | None:
    if words is None:
        return None
    rows = [_integers(row) for row in words]
    if len(rows) != len(sizes):
        raise ValueError(f"there are words of {len(rows)} {what}s for {len(sizes)} {what}s")
    for sample, (row, size) in enumerate(zip(rows, sizes, strict=True)):
        for token, node in enumerate(row):
            if not -1 <= node < size:
                raise ValueError(
                    f"{what} {sample}: token {token} belongs to node {node}; nodes are 0 to {size - 1}"
                )
    return _padded(rows)
