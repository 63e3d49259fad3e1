"""Trees and graphs over the tokens of a batch, and the features of them that position models use."""

from floater.structures.graph_features import (
    distances,
    intimacy,
    laplacian_vectors,
    path_symbols,
    symbols,
    walk_returns,
    wl_colours,
)
from floater.structures.structure import Structure, graphs, trees
from floater.structures.tree_features import (
    ancestors,
    child_index,
    common_ancestors,
    left_child_right_sibling,
)

__all__ = [
    "Structure",
    "ancestors",
    "child_index",
    "common_ancestors",
    "distances",
    "graphs",
    "intimacy",
    "laplacian_vectors",
    "left_child_right_sibling",
    "path_symbols",
    "symbols",
    "trees",
    "walk_returns",
    "wl_colours",
]
