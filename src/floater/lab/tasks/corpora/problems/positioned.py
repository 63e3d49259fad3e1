"""Problems whose answer depends on fields of `Positions`: a graph, a language, another order, a length.

The tokens of a question do not determine its answer, so that an encoding that reads nothing but their order
cannot do better than guess.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from floater.lab.tasks.corpora.problems.example import PositionedExample, named

START, END = "from", "to"
FAR = 3
"""Distances of at least this many edges are one class."""
LANGUAGES = 2
PERIOD = 3
_TRIES = 1000


def tree_distance(length: int, names: int, random: np.random.Generator) -> PositionedExample:
    """Generate a binary tree, and ask for the number of edges between two of its nodes.

    The tokens are the nodes in random order: names, which are noise, and the two marks. The answer is a
    class: 0 for one edge, 1 for two, 2 for more; classes are uniformly distributed. A new node is attached to
    a random node of less than two children.

    Args:
        length: number of nodes, at least 4.
        names: number of different names of nodes.
        random: generator of the example.

    Example:
        >>> example = tree_distance(5, 9, np.random.default_rng(0))
        >>> example.question, example.positions["parents"], example.answer
        (['x8', 'to', 'from', 'x8', 'x6'], [4, 0, -1, 2, 2], ['2'])
    """
    return _distance(length, names, None, random)


def graph_distance(length: int, names: int, extra: int, random: np.random.Generator) -> PositionedExample:
    """Generate a connected graph, and ask for the number of edges of the shortest path between two nodes.

    It is a tree as in `tree_distance`, with random edges added.

    Args:
        length: number of nodes, at least 4.
        names: number of different names of nodes.
        extra: number of added edges; some may be in the graph already.
        random: generator of the example.

    Example:
        >>> example = graph_distance(5, 9, 1, np.random.default_rng(0))
        >>> print(*example.question, example.positions["edges"], example.answer)
        x5 to from x5 x4 [(4, 0), (0, 1), (2, 3), (2, 4), (3, 4)] ['2']
    """
    return _distance(length, names, extra, random)


def _distance(length: int, names: int, extra: int | None, random: np.random.Generator) -> PositionedExample:
    wanted = int(random.integers(FAR))
    for _ in range(_TRIES):
        parents = _binary_tree(length, random)
        edges = [(parent, node) for node, parent in enumerate(parents) if parent >= 0]
        for u, v in random.integers(length, size=(extra or 0, 2)).tolist():
            if u != v and (u, v) not in edges and (v, u) not in edges:
                edges.append((u, v))
        distances = shortest(edges, length)
        classes = np.minimum(distances, FAR) - 1
        pairs = np.argwhere(classes == wanted)
        if len(pairs):
            break
    else:
        raise ValueError(f"no graph of {length} nodes in {_TRIES:,} has two nodes that are so far apart")
    start, end = pairs[random.integers(len(pairs))].tolist()
    words = [f"x{name}" for name in random.integers(names, size=length).tolist()]
    words[start], words[end] = START, END
    fields = {"parents": parents} if extra is None else {"edges": edges}
    return PositionedExample(words, [str(wanted)], length, fields)


def _binary_tree(length: int, random: np.random.Generator) -> list[int]:
    """Return the parents of the nodes of a random tree, -1 for the root, in random order."""
    order = random.permutation(length).tolist()
    parents, free = [-1] * length, [order[0], order[0]]
    for node in order[1:]:
        parents[node] = free.pop(int(random.integers(len(free))))
        free += [node, node]
    return parents


def shortest(edges: Sequence[tuple[int, int]], nodes: int) -> np.ndarray:
    """Return the number of edges of the shortest paths of a connected, undirected graph, (nodes, nodes).

    Example:
        >>> shortest([(0, 1), (1, 2)], 3).tolist()
        [[0, 1, 2], [1, 0, 1], [2, 1, 0]]
    """
    distances = np.where(np.eye(nodes, dtype=bool), 0, nodes)
    for u, v in edges:
        distances[u, v] = distances[v, u] = 1
    for k in range(nodes):  # Floyd and Warshall
        distances = np.minimum(distances, distances[:, k : k + 1] + distances[k])
    return distances


def languages(length: int, symbols: int, random: np.random.Generator) -> PositionedExample:
    """Generate symbols to write in the order of their language: that of the question, or its reverse.

    Args:
        length: number of symbols.
        symbols: number of different symbols.
        random: generator of the example.

    Example:
        >>> example = languages(3, 9, np.random.default_rng(1))
        >>> example.question, example.positions, example.answer
        (['4', '4', '6'], {'language': 1}, ['6', '4', '4'])
    """
    question = list(map(str, random.integers(symbols, size=length).tolist()))
    language = int(random.integers(LANGUAGES))
    return PositionedExample(question, question[:: -1 if language else 1], length, {"language": language})


def reorder(length: int, symbols: int, random: np.random.Generator) -> PositionedExample:
    """Generate symbols to write in a random order, which the second positions of the question tell.

    Args:
        length: number of symbols.
        symbols: number of different symbols.
        random: generator of the example.

    Example:
        >>> example = reorder(3, 9, np.random.default_rng(0))
        >>> example.question, example.positions, example.answer
        (['7', '5', '4'], {'reordered': [1, 2, 0]}, ['4', '7', '5'])
    """
    question = list(map(str, random.integers(symbols, size=length).tolist()))
    order = random.permutation(length)
    answer = [question[i] for i in np.argsort(order)]
    return PositionedExample(question, answer, length, {"reordered": order.tolist()})


def repeat(length: int, symbols: int, random: np.random.Generator) -> PositionedExample:
    """Generate three symbols to repeat up to a length, which is known as the target length alone.

    Args:
        length: number of symbols of the answer.
        symbols: number of different symbols.
        random: generator of the example.

    Example:
        >>> example = repeat(5, 9, np.random.default_rng(0))
        >>> example.question, example.answer
        (['7', '5', '4'], ['7', '5', '4', '7', '5'])
    """
    question = list(map(str, random.integers(symbols, size=PERIOD).tolist()))
    answer = [question[i % PERIOD] for i in range(length)]
    return PositionedExample(question, answer, length, {"target_length": True})


def nodes(names: int) -> list[str]:
    """Return the words of the questions about distances.

    Example:
        >>> nodes(2)
        ['from', 'to', 'x0', 'x1']
    """
    return [START, END, *named("x", names)]
