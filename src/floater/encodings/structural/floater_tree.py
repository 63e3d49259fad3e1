"""A flow over the logarithm of the distance in a tree."""

from __future__ import annotations

import torch
from torch import Tensor

from floater.encodings.card import Card
from floater.encodings.registry import register
from floater.encodings.relative.distances import Distances
from floater.encodings.relative.floater_relative import BiasTable, FloaterRelative
from floater.encodings.spec import StackSpec
from floater.encodings.structural.base import WHOLE, Structured
from floater.positions import Positions
from floater.structures import Structure


def path_lengths(structure: Structure) -> Tensor:
    """Return the number of edges between every two tokens of a tree, negative if the key comes first in the
    text.

    Args:
        structure: trees over T tokens.

    Returns:
        (batch, T, T), query by key.

    Example:
        >>> from floater.structures import trees
        >>> path_lengths(trees([[1, -1, 1]]))[0].tolist()
        [[0, 1, 2], [-1, 0, 1], [-2, -1, 0]]
    """
    lowest, depth = structure.common_ancestors, structure.depth
    shared = depth.gather(1, lowest.clamp(min=0).flatten(1)).view_as(lowest)
    length = structure.between(depth[:, :, None] + depth[:, None, :] - 2 * shared)
    token = torch.arange(length.shape[1], device=length.device)
    return length * torch.where(token < token[:, None], -1, 1)


@register("floater_tree")
class FloaterTree(FloaterRelative, Structured):
    """`floater_relative` over trees: the distance is the number of edges between two tokens.

    Args:
        spec: the stack of blocks; log(1 + min(max_length, clip)) is the span over which vectors
            start of order one.
        width: width of psi.
        hidden: width of the field; None means `width`.
        clip: number of edges to which larger distances are clipped; None for no limit; "auto" means
            max_length // 2.
        start: "small" (psi(0) normal, w of order one) or "zero" (w = 0: no change until trained).
        tail: subtract r_h log(1 + a_h edges), r, a > 0 learned for each head and block.
        solver: a method of `floater.flow.solve`.

    Raises:
        PositionError: if an option is not valid, or the positions have no tree.

    Example:
        >>> from floater.encodings import AttentionContext
        >>> model = FloaterTree(StackSpec(dim=8, heads=2, layers=1, max_length=16))
        >>> q = torch.zeros(1, 2, 3, 4)
        >>> bias = model.bias(q, q, AttentionContext(model.prepare(Positions.tree([[1, -1, 1]])), 0))
        >>> bool(bias[0, 0, 0, 1] == bias[0, 0, 1, 2])  # one edge each, to a later token
        True
    """

    card = Card(
        paper="Liu et al. 2020",
        link="https://arxiv.org/abs/2003.09229",
        point="relative",
        equation="q_t k_s / sqrt(d_h) + w_h psi(u); dpsi/du = h(u, psi), "
        "u = log(1 + min(edges from t to s, clip))",
        parameters=FloaterRelative.card.parameters,
        exceptions=WHOLE,
        pair_matrix="distances in a tree are a table of pairs",
        structure="tree",
    )
    sites = ("self",)
    needs = "tree"

    def __init__(
        self,
        spec: StackSpec,
        *,
        width: int = 32,
        hidden: int | None = None,
        clip: float | str | None = "auto",
        start: str = "small",
        tail: bool = False,
        solver: str = "auto",
    ) -> None:
        super().__init__(spec, width=width, hidden=hidden, clip=clip, start=start, tail=tail, solver=solver)

    def prepare(self, positions: Positions) -> BiasTable:
        structure = self.structure(positions)
        length = path_lengths(structure.on_cpu)
        reach = int(length.abs().max()) if length.numel() else 0
        values = torch.arange(-reach, reach + 1, device=structure.edges.device)
        shape = length.shape[1], length.shape[2]
        return self.bias_table(Distances(values, (length + reach).to(values.device), shape, -reach))
