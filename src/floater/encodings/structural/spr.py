"""Self-Attention with Structural Position Representations (Wang, Tu, Wang, Shi 2019).

The original was not available: the survey's section 4.3.1 is the specification.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.encodings.absolute.added import AddedVectors
from floater.encodings.absolute.tokens import even
from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import at_least_one, chosen_blocks, one_of
from floater.encodings.context import AttentionContext
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.encodings.structural.base import WHOLE, Structured, mixture, scores
from floater.flow import sinusoid
from floater.positions import Positions
from floater.structures import Structure


@register("spr_absolute")
class SPRAbsolute(Structured, AddedVectors):
    """The sinusoid of a token's depth in the tree is added to its embedding.

    Subwords have the position of their word. According to the survey the paper does best with sequential
    positions, too: `sequence="add"` adds the sinusoid p_index of the token's index, "fuse" adds
    tanh(U p_index + V p_depth) instead, with learned U and V, which the survey ascribes to the paper.

    Args:
        sequence: "none", "add" or "fuse".

    Shapes:
        state: (batch or 1, T, dim).

    Raises:
        PositionError: if dim is odd, the option is not valid, or the positions have no tree.

    Example:
        >>> model = SPRAbsolute(StackSpec(dim=2, heads=1, layers=1, max_length=16))
        >>> model.prepare(Positions.tree([[1, -1]])).round(decimals=2).tolist()
        [[[0.8399999737739563, 0.5400000214576721], [0.0, 1.0]]]
    """

    card = Card(
        paper="Wang et al. 2019",
        link="https://arxiv.org/abs/1909.00383",
        stacks={"encoder": "translation"},
        point="absolute",
        equation="x_t + p_{abs(t)}, abs(t) = d_tree(t, ROOT), p sinusoidal",
        survey=SurveyRow("APE", learnable=False, unbound=True, parameters="0"),
        exceptions=WHOLE,
        structure="tree",
    )
    needs = "tree"

    def __init__(self, spec: StackSpec, *, sequence: str = "none") -> None:
        super().__init__(spec)
        one_of("sequence", sequence, ("none", "add", "fuse"))
        even(spec)
        self.sequence, self.derives_positions = sequence, sequence == "none"
        if sequence == "fuse":
            self.index = nn.Linear(spec.dim, spec.dim, bias=False)
            self.depth = nn.Linear(spec.dim, spec.dim, bias=False)
            self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in self.parameters():
            nn.init.xavier_uniform_(weight)

    def prepare(self, positions: Positions) -> Tensor:
        structure = self.structure(positions)
        depth = sinusoid(structure.at(structure.depth), self.spec.dim, dtype=self.dtype)
        if self.sequence == "none":
            return depth
        index = sinusoid(positions.query, self.spec.dim, dtype=self.dtype)
        if self.sequence == "add":
            return depth + index
        dtype = self.depth.weight.dtype
        return torch.tanh(self.index(index.to(dtype)) + self.depth(depth.to(dtype)))


@register("spr_relative")
class SPRRelative(Structured):
    """A learned vector for each relative position in the tree, added to keys and values as Shaw et al. do.

    With the query t and the key s: rel = abs(t) - abs(s) if one of them is an ancestor of the other, else
    sgn(t - s) (abs(t) + abs(s)), with the depths abs and the token indices t and s. This is the distance in
    the tree only if the root is their lowest common ancestor. Subwords have the position of their word, so
    that two of one word have rel = 0.

    The survey counts one table for keys and one for values, a vector of width d (head by head) in each row,
    and no recurrence: `blocks="input"`, the first block. As Shaw et al. clip distances, so do relative
    positions beyond `reach` share the last vector. Tables start at a scale of head_dim^-1/2.

    Args:
        reach: greatest relative position that has a vector of its own; None means max_length.
        blocks: "input" (the first block), "all", or a list of block indices, each with tables of its own.

    Shapes:
        state: the rows of the tables that are in use, and each pair's row among them, (batch or 1, T, T).

    Raises:
        PositionError: if an option is not valid, or the positions have no tree.

    Example:
        >>> tree = Positions.tree([[1, -1, 1]]).structure
        >>> tree_relations(tree)[0].tolist()
        [[0, 1, -2], [-1, 0, -1], [2, 1, 0]]
    """

    card = Card(
        paper="Wang et al. 2019",
        link="https://arxiv.org/abs/1909.00383",
        stacks={"encoder": "translation"},
        point="relative",
        equation="q_t (k_s + a_{rel(t,s)}), sum_s A_ts (v_s + b_{rel(t,s)})",
        parameters="2 * (2 * t_max + 1) * d",
        survey=SurveyRow("MAM", parameters="2 * (2 * t_max + 1) * d"),
        exceptions=WHOLE,
        structure="tree",
    )
    needs = "tree"
    keys: nn.Parameter
    vectors: nn.Parameter

    def __init__(
        self, spec: StackSpec, *, reach: int | None = None, blocks: str | list[int] = "input"
    ) -> None:
        super().__init__(spec)
        self.blocks = chosen_blocks(blocks, spec.layers)
        self.reach = spec.max_length if reach is None else reach
        at_least_one(reach=self.reach)
        size = (len(self.blocks), spec.heads, 2 * self.reach + 1, spec.dim // spec.heads)
        self.keys = nn.Parameter(torch.empty(size))
        self.vectors = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in (self.keys, self.vectors):
            nn.init.normal_(table, std=table.shape[-1] ** -0.5)

    def prepare(self, positions: Positions) -> tuple[slice, Tensor]:
        structure = self.structure(positions)
        relations = tree_relations(structure.on_cpu).clamp(-self.reach, self.reach) + self.reach
        low, high = map(int, relations.aminmax()) if relations.numel() else (0, -1)
        return slice(low, high + 1), (relations - low).to(structure.edges.device)

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[tuple[slice, Tensor]]) -> Tensor | None:
        if context.layer not in self.blocks:
            return None
        rows, pair = context.state
        table = self.keys[None, self.blocks.index(context.layer), :, rows].to(q.dtype)
        return scores(q, table, pair) * self.scale(q.shape[-1])

    def value_bias(self, weights: Tensor, context: AttentionContext[tuple[slice, Tensor]]) -> Tensor | None:
        if context.layer not in self.blocks:
            return None
        rows, pair = context.state
        return mixture(weights, self.vectors[None, self.blocks.index(context.layer), :, rows], pair)


def tree_relations(structure: Structure) -> Tensor:
    """Return rel(t, s) of every two tokens, query by key: (batch, T, T)."""
    lowest, depth = structure.between(structure.common_ancestors), structure.at(structure.depth)
    node = structure.at(
        torch.arange(structure.valid.shape[1], device=lowest.device).expand_as(structure.valid)
    )
    one_path = (lowest == node[:, :, None]) | (lowest == node[:, None, :])
    query, key = depth[:, :, None], depth[:, None, :]
    token = torch.arange(depth.shape[1], device=depth.device)
    order = (token[:, None] - token).sign()
    return torch.where(one_path, query - key, order * (query + key))
