"""Features of graphs that position models use."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _ends(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Return sources and targets of all edges (batch, N, N), with the nodes of the batch numbered through."""
    sample, source, target = edges.nonzero(as_tuple=True)
    first = edges.shape[1] * sample
    return first + source, first + target


def distances(edges: Tensor, starts: int | None = None) -> Tensor:
    """Return the number of edges on a shortest path from row to column, -1 without.

    Args:
        edges: (batch, N, N) bool.
        starts: number of nodes to start from, the first ones; None for all.

    Returns:
        (batch, starts, N).

    Example:
        >>> distances(torch.tensor([[[False, True], [False, False]]])).tolist()
        [[[0, 1], [-1, 0]]]
    """
    batch, nodes, _ = edges.shape
    starts = nodes if starts is None else starts
    source, target = _ends(edges)
    reached = torch.eye(nodes, starts, dtype=torch.bool, device=edges.device).repeat(batch, 1)
    distance = reached.long() - 1
    steps = 0
    while True:
        steps += 1
        arrivals = reached[source].float()
        ways = arrivals.new_zeros(distance.shape).index_add(0, target, arrivals)
        reached = (ways > 0) & (distance < 0)
        if not bool(reached.any()):
            return distance.view(batch, nodes, starts).transpose(1, 2)
        distance = distance.masked_fill(reached, steps)


def symbols(edges: Tensor) -> Tensor:
    """Return labels with directions, for paths that may run against edges.

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
    """Return the symbols on a shortest path from row to column, of several that of the lowest next nodes.

    Args:
        symbol: (batch, N, N), 0 where there is no edge.

    Returns:
        The distinct sequences of the batch, (R, greatest distance), 0 past the end, the empty one first; and
        for each pair of nodes the number of its sequence, (batch, N, N), -1 without a path.

    Example:
        >>> from floater.structures import graphs
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
    # distance and two numbers identify one.
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
    """Return eigenvectors of I - D^-1/2 A D^-1/2 with the smallest eigenvalues, without the first.

    Degrees count from 1, so that a node without edges is an eigenvector of eigenvalue 1. The sign makes the
    component of greatest size positive, of equal ones the first. Equal eigenvalues leave their vectors open
    to a rotation; a graph's own does not depend on the others of the batch.

    Args:
        neighbours: (batch, N, N) bool, symmetric.
        valid: (batch, N) bool.
        count: number of eigenvectors.

    Returns:
        (batch, N, count) in float64; 0 at padding and where a graph has no more eigenvectors.

    Example:
        >>> from floater.structures import graphs
        >>> pair = graphs([[(0, 1)]])
        >>> laplacian_vectors(pair.neighbours, pair.valid, 2).abs().round(decimals=4).tolist()
        [[[0.7071, 0.0], [0.7071, 0.0]]]
    """
    eigenvectors = torch.zeros(*valid.shape, count, dtype=torch.float64, device=valid.device)
    for sample, present in enumerate(valid):
        adjacency = neighbours[sample][present][:, present].double()
        root = adjacency.sum(-1).clamp(min=1).rsqrt()
        eye = torch.eye(len(adjacency), dtype=torch.float64, device=valid.device)
        laplacian = eye - root[:, None] * adjacency * root
        # at its own size: padding would turn the vectors of equal eigenvalues
        vectors = torch.linalg.eigh(laplacian).eigenvectors[:, 1 : count + 1]
        if vectors.numel():
            size = vectors.abs()
            equal = size >= size.amax(0) * (1 - 1e-6)  # but for rounding
            greatest = vectors.gather(0, equal.long().argmax(0, keepdim=True))
            eigenvectors[sample, present, : vectors.shape[1]] = torch.where(greatest < 0, -vectors, vectors)
    return eigenvectors


def walk_returns(neighbours: Tensor, steps: int) -> Tensor:
    """Return the probability that a random walk from each node is back after 1, 2, ... steps.

    Args:
        neighbours: (batch, N, N) bool.
        steps: length of the longest walk.

    Returns:
        (batch, N, steps) in float64; 0 at nodes without edges.

    Example:
        >>> from floater.structures import graphs
        >>> walk_returns(graphs([[(0, 1)]]).neighbours, 2).tolist()
        [[[0.0, 1.0], [0.0, 1.0]]]
    """
    adjacency = neighbours.double()
    step = adjacency / adjacency.sum(-1, keepdim=True).clamp(min=1)
    walk, returns = step, [step.diagonal(dim1=1, dim2=2)]
    for _ in range(steps - 1):
        walk = walk @ step
        returns.append(walk.diagonal(dim1=1, dim2=2))
    return torch.stack(returns, -1)


def wl_colours(neighbours: Tensor, valid: Tensor, rounds: int) -> Tensor:
    """Return colours of the Weisfeiler-Lehman refinement, which begins with one colour.

    After a round, nodes of a graph have the same colour if they had the same before and their neighbours'
    colours agree. Colours are numbered from 0 by the order of these, so that isomorphic graphs have the same.

    Args:
        neighbours: (batch, N, N) bool, symmetric.
        valid: (batch, N) bool.
        rounds: number of refinements.

    Returns:
        (batch, N) integers, 0 at padding.

    Example:
        >>> from floater.structures import graphs
        >>> path = graphs([[(0, 1), (1, 2), (2, 3), (3, 4)]])
        >>> wl_colours(path.neighbours, path.valid, 2).tolist()
        [[0, 2, 1, 2, 0]]
    """
    colours = torch.zeros(valid.shape, dtype=torch.long, device=valid.device)
    for sample, present in enumerate(valid):
        if not bool(present.any()):
            continue
        source, target = neighbours[sample][present][:, present].nonzero(as_tuple=True)
        colour = colours[sample][present]
        for _ in range(rounds):
            around = colour.new_zeros(len(colour), int(colour.max()) + 1)
            around.index_put_((source, colour[target]), around.new_ones(()), accumulate=True)
            key = torch.cat([colour[:, None], around], dim=1)
            colour = torch.unique(key, dim=0, return_inverse=True)[1]
        colours[sample, present] = colour
    return colours


def intimacy(neighbours: Tensor, restart: float, starts: int | None = None) -> Tensor:
    """Return personalised PageRank a (I - (1 - a) D^-1 A)^-1: from each node (row) to each (column).

    Args:
        neighbours: (batch, N, N) bool.
        restart: a, between 0 and 1.
        starts: number of rows, the first ones; None for all.

    Returns:
        (batch, starts, N) in float64.

    Example:
        >>> from floater.structures import graphs
        >>> intimacy(graphs([[(0, 1)]]).neighbours, 0.5).round(decimals=4).tolist()
        [[[0.6667, 0.3333], [0.3333, 0.6667]]]
    """
    batch, nodes, _ = neighbours.shape
    starts = nodes if starts is None else starts
    source, target = _ends(neighbours)
    degree = torch.bincount(source, minlength=batch * nodes).clamp(min=1).double()[:, None]
    walk = torch.eye(nodes, starts, dtype=torch.float64, device=neighbours.device).repeat(batch, 1)
    pagerank = restart * walk  # node by start
    # The series of walks of 1, 2, ... steps along the edges, to the last bit: few edges, and no inverse.
    for _ in range(math.ceil(53 * math.log(2) / -math.log1p(-restart))):
        walk = torch.zeros_like(walk).index_add(0, target, (walk / degree)[source], alpha=1 - restart)
        pagerank += restart * walk
    return pagerank.view(batch, nodes, starts).transpose(1, 2)
