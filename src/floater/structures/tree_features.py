"""Features of trees that position models use."""

from __future__ import annotations

import torch
from torch import Tensor


def ancestors(parents: Tensor, valid: Tensor) -> Tensor:
    """Return the nodes on the path from each node of a tree to its root, the node itself first.

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
    """Return the number of siblings before each node of a tree: (batch, N) -> (batch, N).

    Example:
        >>> child_index(torch.tensor([[1, -1, 1, 1]])).tolist()
        [[0, 0, 1, 2]]
    """
    siblings = (parents[:, :, None] == parents[:, None, :]) & (parents >= 0)[:, :, None]
    return siblings.tril(-1).sum(-1)


def left_child_right_sibling(parents: Tensor) -> tuple[Tensor, Tensor]:
    """Return the binary form of trees: a first child is a child of its parent, others of the sibling before.

    Args:
        parents: (batch, N), -1 at the root and at padding.

    Returns:
        The parents in the binary form (batch, N), and the branches (batch, N): 0 for a first child, 1 for a
        sibling.

    Example:
        >>> left_child_right_sibling(torch.tensor([[-1, 0, 0, 0]]))[0].tolist()
        [[-1, 0, 1, 2]]
    """
    siblings = (parents[:, :, None] == parents[:, None, :]) & (parents >= 0)[:, :, None]
    node = torch.arange(parents.shape[1], device=parents.device)
    before = torch.where(siblings.tril(-1), node, -1)
    before = torch.cat([before, before.new_full((*parents.shape, 1), -1)], dim=-1).amax(-1)
    return torch.where(before >= 0, before, parents), (before >= 0).long()


def depths(way: Tensor) -> Tensor:
    """Return the number of edges between each node of a tree and its root, (batch, N), from its `ancestors`.

    Example:
        >>> depths(torch.tensor([[[0, 1], [1, -1]]]))
        tensor([[1, 0]])
    """
    return ((way >= 0).sum(-1) - 1).clamp(min=0)


def common_ancestors(way: Tensor, valid: Tensor) -> Tensor:
    """Return the lowest common ancestor of any two nodes of a tree: (batch, N, N), -1 at padding.

    Args:
        way: the nodes' ancestors, as `ancestors` returns them.
        valid: (batch, N), False at padding.

    Example:
        >>> from floater.structures import trees
        >>> tree = trees([[1, -1, 1, 2]])
        >>> common_ancestors(tree.ancestors, tree.valid)[0].tolist()
        [[0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 2, 2], [1, 1, 2, 3]]
    """
    depth = depths(way)
    lowest = way.new_full((*valid.shape, valid.shape[1]), -1)
    for level in range(way.shape[-1]):
        at = way.gather(-1, (depth - level).clamp(min=0)[..., None])[..., 0]
        at = at.masked_fill((depth < level) | ~valid, -1)
        same = (at[:, :, None] == at[:, None, :]) & (at >= 0)[:, :, None]
        lowest = torch.where(same, at[:, :, None], lowest)
    return lowest
