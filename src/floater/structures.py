"""Trees and graphs over the tokens of a batch, and what position models read off them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

Device = torch.device | str | None


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Structure:
    """A batch of graphs, padded; a tree is a graph with an edge from each parent to each child.

    What is derived from it is computed once and kept, for all position models that read it. N is the number
    of nodes, T the number of tokens; without `words` token i is node i.

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
    def token_valid(self) -> Tensor:
        """(batch, T) bool, False where a token is padding."""
        return self.valid if self.words is None else self.words >= 0

    def map(self, change: Callable[[Tensor], Tensor]) -> Structure:
        """The same graphs, with every tensor changed: moved to another device, or repeated."""
        parents, words = (None if part is None else change(part) for part in (self.parents, self.words))
        return Structure(change(self.edges), change(self.valid), parents, words)

    def at(self, values: Tensor) -> Tensor:
        """Values of nodes (batch, N, ...) as values of tokens (batch, T, ...)."""
        if self.words is None:
            return values
        batch = torch.arange(len(values), device=values.device)[:, None]
        return values[batch, self.words.clamp(min=0)]

    def between(self, values: Tensor) -> Tensor:
        """Values of pairs of nodes (batch, N, N) as values of pairs of tokens (batch, T, T)."""
        return self.at(self.at(values).transpose(1, 2)).transpose(1, 2)

    @cached_property
    def depth(self) -> Tensor:
        """(batch, N): edges between a node of a tree and its root."""
        return ((self.ancestors >= 0).sum(-1) - 1).clamp(min=0)

    @cached_property
    def ancestors(self) -> Tensor:
        """See `ancestors`."""
        return ancestors(self._parents, self.valid)

    @cached_property
    def child_index(self) -> Tensor:
        """See `child_index`."""
        return child_index(self._parents)

    @cached_property
    def neighbours(self) -> Tensor:
        """(batch, N, N) bool: whether two nodes share an edge of either direction."""
        return (self.edges > 0) | (self.edges > 0).transpose(1, 2)

    @cached_property
    def distance(self) -> Tensor:
        """Edges on a shortest path along the directions of edges; see `distances`."""
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
    """A batch of trees from the parents of their nodes, padded on the right.

    Args:
        parents: of each tree, the index of each node's parent, -1 for the root.
        labels: of each tree, the label of the edge from a node's parent to the node, from 0; None means 0.
        words: of each tree, the node that each token belongs to, -1 for padding; None: token i is node i.
        device: where the tensors live.

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
    kinds = _aligned("labels", labels, rows) if labels is not None else [[0] * len(row) for row in rows]
    found: list[list[tuple[int, int, int]]] = []
    for sample, (row, kind) in enumerate(zip(rows, kinds, strict=True)):
        _check_tree(sample, row)
        found.append([(p, node, k) for node, (p, k) in enumerate(zip(row, kind, strict=True)) if p >= 0])
    edges, valid = _dense(found, [len(row) for row in rows], "tree")
    padded = _padded(rows, -1)
    owners = _words(words, [len(row) for row in rows], "tree")
    return Structure(
        edges.to(device), valid.to(device), padded.to(device), None if owners is None else owners.to(device)
    )


def graphs(
    given: Any,
    *,
    sizes: Sequence[int] | None = None,
    labels: Sequence[Sequence[int] | Tensor] | None = None,
    directed: bool = True,
    words: Sequence[Sequence[int] | Tensor] | None = None,
    device: Device = None,
) -> Structure:
    """A batch of graphs, padded on the right.

    Args:
        given: the graphs, each a networkx graph (its nodes count in their own order, its edges may carry an
            integer attribute "label"), an `edge_index` tensor (2, E) of sources and targets, or a list of
            pairs (source, target) or triples (source, target, label). A single networkx graph or tensor is a
            batch of one.
        sizes: number of nodes of each graph; None counts to the highest node that has an edge. A networkx
            graph knows its own.
        labels: of each graph, the label of each edge, from 0; None means those given with the edges, else 0.
        directed: False adds every edge's reverse, with the same label; undirected networkx graphs have both.
        words: of each graph, the node that each token belongs to, -1 for padding; None: token i is node i.
        device: where the tensors live.

    Raises:
        ValueError: if a node or label is out of range, or an edge is given twice with different labels.

    Example:
        >>> graphs([[(0, 1), (1, 2)]], sizes=[4]).distance[0, 0].tolist()
        [0, 1, 2, -1]
        >>> graphs([[(0, 3)]], sizes=[3])
        Traceback (most recent call last):
        ValueError: graph 0 has an edge 0 -> 3; its nodes are 0 to 2
    """
    if isinstance(given, Tensor) or _is_networkx(given):
        given = [given]
    found: list[list[tuple[int, int, int]]] = []
    counts: list[int] = []
    for sample, graph in enumerate(given):
        triples, count, both = _triples(graph)
        if sizes is not None:
            if len(sizes) != len(given):
                raise ValueError(f"there are {len(sizes)} sizes for {len(given)} graphs")
            count = sizes[sample]
        if labels is not None:
            if len(labels) != len(given):
                raise ValueError(f"there are labels of {len(labels)} graphs for {len(given)} graphs")
            own = _integers(labels[sample])
            if len(own) != len(triples):
                raise ValueError(f"graph {sample} has {len(triples)} edges and {len(own)} labels")
            triples = [(u, v, k) for (u, v, _), k in zip(triples, own, strict=True)]
        for u, v, _ in triples:
            if not (0 <= u < count and 0 <= v < count):
                raise ValueError(f"graph {sample} has an edge {u} -> {v}; its nodes are 0 to {count - 1}")
        found.append(triples if directed and not both else triples + [(v, u, k) for u, v, k in triples])
        counts.append(count)
    edges, valid = _dense(found, counts, "graph")
    owners = _words(words, counts, "graph")
    return Structure(edges.to(device), valid.to(device), words=None if owners is None else owners.to(device))


def ancestors(parents: Tensor, valid: Tensor) -> Tensor:
    """The nodes on the way from each node of a tree to its root, itself first.

    Args:
        parents: (batch, N), -1 at the root and at padding.
        valid: (batch, N) bool.

    Returns:
        (batch, N, 1 + greatest depth), -1 past the root.

    Example:
        >>> ancestors(torch.tensor([[-1, 0, 1]]), torch.ones(1, 3, dtype=torch.bool))[0].tolist()
        [[0, -1, -1], [1, 0, -1], [2, 1, 0]]
    """
    node = torch.arange(parents.shape[1], device=parents.device).expand_as(parents)
    way = [node.masked_fill(~valid, -1)]
    while True:
        above = parents.gather(1, way[-1].clamp(min=0)).masked_fill(way[-1] < 0, -1)
        if not bool((above >= 0).any()):
            return torch.stack(way, dim=-1)
        way.append(above)


def child_index(parents: Tensor) -> Tensor:
    """How many siblings stand before each node of a tree: (batch, N) -> (batch, N).

    Example:
        >>> child_index(torch.tensor([[1, -1, 1, 1]])).tolist()
        [[0, 0, 1, 2]]
    """
    siblings = (parents[:, :, None] == parents[:, None, :]) & (parents >= 0)[:, :, None]
    return siblings.tril(-1).sum(-1)


def left_child_right_sibling(parents: Tensor) -> tuple[Tensor, Tensor]:
    """The binary form of trees: a first child hangs under its parent, another under the sibling before it.

    Args:
        parents: (batch, N), -1 at the root and at padding.

    Returns:
        Its parents (batch, N), and the branches (batch, N): 0 for a first child, 1 for a sibling.

    Example:
        >>> left_child_right_sibling(torch.tensor([[-1, 0, 0, 0]]))[0].tolist()
        [[-1, 0, 1, 2]]
    """
    siblings = (parents[:, :, None] == parents[:, None, :]) & (parents >= 0)[:, :, None]
    node = torch.arange(parents.shape[1], device=parents.device)
    before = torch.where(siblings.tril(-1), node, -1)
    before = torch.cat([before, before.new_full((*parents.shape, 1), -1)], dim=-1).amax(-1)
    return torch.where(before >= 0, before, parents), (before >= 0).long()


def common_ancestors(tree: Structure) -> Tensor:
    """The lowest common ancestor of any two nodes of a tree: (batch, N, N), -1 at padding.

    Example:
        >>> common_ancestors(trees([[1, -1, 1, 2]]))[0].tolist()
        [[0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 2, 2], [1, 1, 2, 3]]
    """
    way, depth = tree.ancestors, tree.depth
    lowest = torch.full_like(tree.edges, -1)
    for level in range(way.shape[-1]):
        at = way.gather(-1, (depth - level).clamp(min=0)[..., None])[..., 0]
        at = at.masked_fill((depth < level) | ~tree.valid, -1)
        same = (at[:, :, None] == at[:, None, :]) & (at >= 0)[:, :, None]
        lowest = torch.where(same, at[:, :, None], lowest)
    return lowest


def distances(edges: Tensor) -> Tensor:
    """Number of edges on a shortest path from row to column: (batch, N, N) bool -> (batch, N, N), -1 without.

    Example:
        >>> distances(torch.tensor([[[False, True], [False, False]]])).tolist()
        [[[0, 1], [-1, 0]]]
    """
    batch, nodes, _ = edges.shape
    sample, source, target = edges.nonzero(as_tuple=True)
    source, target = source + nodes * sample, target + nodes * sample
    reached = torch.eye(nodes, dtype=torch.bool, device=edges.device).repeat(batch, 1)  # node by start
    distance = reached.long() - 1
    steps = 0
    while True:
        steps += 1
        ways = torch.zeros(distance.shape, device=edges.device).index_add(0, target, reached[source].float())
        reached = (ways > 0) & (distance < 0)
        if not bool(reached.any()):
            return distance.view(batch, nodes, nodes).transpose(1, 2)
        distance = distance.masked_fill(reached, steps)


def symbols(edges: Tensor) -> Tensor:
    """Labels with directions, for paths that may run against edges.

    Args:
        edges: (batch, N, N), see `Structure`.

    Returns:
        (batch, N, N): 2 k + 1 along an edge with label k, 2 k + 2 against it, 0 without; where there are
        edges of both directions, along.

    Example:
        >>> symbols(torch.tensor([[[0, 4], [0, 0]]])).tolist()
        [[[0, 7], [8, 0]]]
    """
    along, against = 2 * edges - 1, 2 * edges.transpose(1, 2)
    return torch.where(edges > 0, along, against)


def path_symbols(symbol: Tensor) -> tuple[Tensor, Tensor]:
    """The symbols on a shortest path from row to column; of several, the one over the lowest next nodes.

    Args:
        symbol: (batch, N, N), 0 where there is no edge.

    Returns:
        The distinct sequences of the batch, (R, greatest distance), 0 past the end, the empty one first; and
        for each pair of nodes the number of its sequence, (batch, N, N), -1 without a path.

    Example:
        >>> rows, pair = path_symbols(symbols(graphs([[(0, 1, 5), (2, 1, 6)]]).edges))
        >>> rows[pair[0, 0, 2]].tolist()
        [11, 14]
    """
    batch, nodes, _ = symbol.shape
    distance = distances(symbol > 0)
    sample, source, target = symbol.nonzero(as_tuple=True)
    nearer = distance[sample, target] == distance[sample, source] - 1  # (E, N), for each end of a path
    following = symbol.new_full((batch * nodes, nodes), nodes).scatter_reduce(
        0,
        (sample * nodes + source)[:, None].expand(-1, nodes),
        torch.where(nearer, target[:, None], nodes),
        "amin",
    )
    # A path is its first symbol and the path from the next node on, so that sequences grow by one symbol a
    # distance and are told apart by two numbers.
    order = distance.flatten().argsort(stable=True)
    groups = torch.split(order, torch.bincount(distance.flatten() + 1, minlength=2).tolist())
    pair = torch.where(distance.flatten() < 0, -1, 0)
    rows = [symbol.new_zeros(1, 0)]
    start = 0
    for group in groups[2:]:
        row, end = group // nodes, group % nodes
        then = following[row, end]
        first = symbol.flatten()[row * nodes + then]
        rest = pair[(row - row % nodes + then) * nodes + end] - start
        start += len(rows[-1])
        key, number = torch.unique(first * len(rows[-1]) + rest, return_inverse=True)
        pair[group] = number + start
        grown = (key // len(rows[-1]), rows[-1][key % len(rows[-1])])
        rows.append(torch.cat([grown[0][:, None], grown[1]], dim=1))
    longest = rows[-1].shape[1]
    padded = [torch.nn.functional.pad(row, (0, longest - row.shape[1])) for row in rows]
    return torch.cat(padded), pair.view(batch, nodes, nodes)


def laplacian_vectors(neighbours: Tensor, valid: Tensor, count: int) -> Tensor:
    """Eigenvectors of I - D^-1/2 A D^-1/2 with the smallest eigenvalues, the first left out.

    Degrees count from 1, so that a node without edges is an eigenvector of eigenvalue 1. The sign makes the
    component of greatest size positive, of equal ones the first. Equal eigenvalues leave their vectors open
    to a rotation.

    Args:
        neighbours: (batch, N, N) bool, symmetric.
        valid: (batch, N) bool.
        count: number of eigenvectors.

    Returns:
        (batch, N, count) in float64; 0 at padding and where a graph has no more eigenvectors.

    Example:
        >>> pair = graphs([[(0, 1)]])
        >>> laplacian_vectors(pair.neighbours, pair.valid, 2).abs().round(decimals=4).tolist()
        [[[0.7071, 0.0], [0.7071, 0.0]]]
    """
    adjacency = neighbours.double()
    root = adjacency.sum(-1).clamp(min=1).rsqrt()
    eye = torch.eye(adjacency.shape[-1], dtype=torch.float64, device=adjacency.device)
    # eigenvalues lie in [0, 2]: padding gets 3, so that its vectors come last and are cut off
    laplacian = eye * torch.where(valid, 1.0, 3.0)[:, None] - root[:, :, None] * adjacency * root[:, None, :]
    vectors = torch.linalg.eigh(laplacian).eigenvectors[:, :, 1 : count + 1]
    rank = torch.arange(1, 1 + vectors.shape[-1], device=valid.device)
    vectors = vectors * (rank < valid.sum(-1)[:, None])[:, None, :] * valid[:, :, None]
    if vectors.numel():
        size = vectors.abs()
        equal = size >= size.amax(1, keepdim=True) * (1 - 1e-6)  # but for rounding
        greatest = vectors.gather(1, equal.long().argmax(1, keepdim=True))
        vectors = torch.where(greatest < 0, -vectors, vectors)
    return torch.nn.functional.pad(vectors, (0, count - vectors.shape[-1]))


def wl_colours(neighbours: Tensor, valid: Tensor, rounds: int) -> Tensor:
    """Colours of the Weisfeiler-Lehman refinement, from one colour on.

    Nodes of a graph have the same colour if they had so before and their neighbours' colours agree; colours
    count from 0 in the order of those, so that isomorphic graphs get the same.

    Args:
        neighbours: (batch, N, N) bool, symmetric.
        valid: (batch, N) bool.
        rounds: refinements.

    Returns:
        (batch, N) integers, 0 at padding.

    Example:
        >>> path = graphs([[(0, 1), (1, 2), (2, 3), (3, 4)]])
        >>> wl_colours(path.neighbours, path.valid, 2).tolist()
        [[0, 2, 1, 2, 0]]
    """
    colours = torch.zeros(valid.shape, dtype=torch.long, device=valid.device)
    for sample, present in enumerate(valid):
        edges = neighbours[sample][present][:, present].long()
        colour = colours[sample][present]
        for _ in range(rounds):
            around = torch.zeros_like(edges).index_add(1, colour, edges)
            key = torch.cat([colour[:, None], around], dim=1)
            colour = torch.unique(key, dim=0, return_inverse=True)[1]
        colours[sample, present] = colour
    return colours


def intimacy(neighbours: Tensor, restart: float) -> Tensor:
    """Personalised PageRank a (I - (1 - a) D^-1 A)^-1: from each node (row) to each (column).

    Args:
        neighbours: (batch, N, N) bool.
        restart: a, between 0 and 1.

    Returns:
        (batch, N, N) in float64.

    Example:
        >>> intimacy(graphs([[(0, 1)]]).neighbours, 0.5).round(decimals=4).tolist()
        [[[0.6667, 0.3333], [0.3333, 0.6667]]]
    """
    step = neighbours.double()
    step = step / step.sum(-1, keepdim=True).clamp(min=1)
    eye = torch.eye(step.shape[-1], dtype=torch.float64, device=step.device)
    inverse: Tensor = torch.linalg.inv(eye - (1 - restart) * step)
    return restart * inverse


def _integers(row: Iterable[Any]) -> list[int]:
    return [int(value) for value in (row.tolist() if isinstance(row, Tensor) else row)]


def _aligned(name: str, given: Sequence[Any], rows: list[list[int]]) -> list[list[int]]:
    found = [_integers(row) for row in given]
    if len(found) != len(rows):
        raise ValueError(f"there are {name} of {len(found)} trees for {len(rows)} trees")
    for sample, (own, row) in enumerate(zip(found, rows, strict=True)):
        if len(own) != len(row):
            raise ValueError(f"tree {sample} has {len(row)} nodes and {len(own)} {name}")
    return found


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
    """(source, target, label) of a graph, its number of nodes, and whether edges run both ways."""
    if _is_networkx(graph):
        index = {node: i for i, node in enumerate(graph.nodes)}
        found = [(index[u], index[v], k) for u, v, k in graph.edges(data="label", default=0)]
        for u, v, k in found:
            if not isinstance(k, int):
                raise ValueError(f"the edge {u} -> {v} has the label {k!r}; labels are integers from 0")
        return found, len(index), not graph.is_directed()
    if isinstance(graph, Tensor):
        if graph.ndim != 2 or graph.shape[0] != 2:
            raise ValueError(f"edge_index is {tuple(graph.shape)}; it must be (2, edges)")
        pairs: list[list[int]] = graph.T.tolist()
    else:
        pairs = [_integers(edge) for edge in graph]
    if wrong := [pair for pair in pairs if len(pair) not in (2, 3)]:
        raise ValueError(f"the edge {tuple(wrong[0])} is not (source, target) or (source, target, label)")
    found = [(pair[0], pair[1], pair[2] if len(pair) == 3 else 0) for pair in pairs]
    return found, max((max(u, v) + 1 for u, v, _ in found), default=0), False


def _dense(found: list[list[tuple[int, int, int]]], sizes: list[int], what: str) -> tuple[Tensor, Tensor]:
    """Edges (batch, N, N) and valid nodes (batch, N)."""
    nodes = max(sizes, default=0)
    valid = torch.arange(nodes) < torch.tensor(sizes, dtype=torch.long).view(-1, 1)
    edges = torch.zeros(len(sizes), nodes, nodes, dtype=torch.long)
    for sample, triples in enumerate(found):
        known: dict[tuple[int, int], int] = {}
        for u, v, k in triples:
            if k < 0:
                raise ValueError(f"{what} {sample}: the edge {u} -> {v} has label {k}; labels are from 0")
            if known.setdefault((u, v), k) != k:
                raise ValueError(
                    f"{what} {sample} has the edge {u} -> {v} twice, with labels {known[u, v]} and {k}"
                )
        if known:
            source, target = torch.tensor(list(known)).T
            edges[sample, source, target] = torch.tensor(list(known.values())) + 1
    return edges, valid


def _padded(rows: list[list[int]], fill: int) -> Tensor:
    longest = max(map(len, rows), default=0)
    return torch.tensor([row + [fill] * (longest - len(row)) for row in rows], dtype=torch.long).view(
        len(rows), longest
    )


def _words(given: Sequence[Any] | None, sizes: list[int], what: str) -> Tensor | None:
    if given is None:
        return None
    rows = [_integers(row) for row in given]
    if len(rows) != len(sizes):
        raise ValueError(f"there are words of {len(rows)} {what}s for {len(sizes)} {what}s")
    for sample, (row, size) in enumerate(zip(rows, sizes, strict=True)):
        for token, node in enumerate(row):
            if not -1 <= node < size:
                raise ValueError(
                    f"{what} {sample}: token {token} belongs to node {node}; nodes are 0 to {size - 1}"
                )
    return _padded(rows, -1)
