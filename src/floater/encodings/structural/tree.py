"""Novel Positional Encodings to Enable Tree-Based Transformers (Shiv, Quirk 2019, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.absolute.added import AddedVectors
from floater.encodings.card import Card, SurveyRow
from floater.encodings.errors import PositionError
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.encodings.structural.base import WHOLE, Structured
from floater.positions import Positions
from floater.structures.tree_features import ancestors, left_child_right_sibling


@register("tree")
class Tree(Structured, AddedVectors):
    """The path from a token up to the root, as a one-hot branch per step, is added to its embedding.

    Going down to the i-th child pushes the one-hot vector of i in front, of size `branching`, so that a
    node's own branch comes first and its ancestors' follow; the root is zero. As in the paper a push drops
    what exceeds `depth` steps: deeper nodes encode their nearest `depth` ancestors.

    With `weighted`, dim // (branching * depth) copies are concatenated. In the copy of a parameter w
    step i (0 for the own branch) is weighted with p^i, p = tanh(w), and the copy with
    sqrt((1 - p^2) dim / 2). w starts between 0.7 and 0.999, so that ancestors count; in the authors' program
    it starts around zero, by Glorot's rule. The survey's count of d / D_max ignores the branching. Without
    `weighted` there is one unweighted copy and no parameter.

    Args:
        branching: greatest number of children of a node.
        depth: steps that are kept.
        weighted: learned weights.
        binary: turn the tree into its left-child right-sibling form first, whose branching is 2, as the paper
            does with trees of any branching.

    Shapes:
        state: (batch or 1, T, dim).

    Raises:
        PositionError: if dim is too small for one copy, an option is below 1, the positions have no tree, or
            a node has more than `branching` children.

    Example:
        >>> model = Tree(StackSpec(dim=4, heads=1, layers=1, max_length=16), depth=2, weighted=False)
        >>> model.prepare(Positions.tree([[-1, 0, 0, 2]])).int().tolist()
        [[[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 1]]]
    """

    card = Card(
        paper="Shiv and Quirk 2019",
        link="https://papers.nips.cc/paper/9376-novel-positional-encodings-to-enable-tree-based-transformers",
        stacks={"encoder": "programs", "decoder": "programs, logical forms"},
        point="absolute",
        equation="x_t + [p^i e_{b_i}]_{p, i}, b_i the branches up to the root",
        parameters="d // (branching * depth)",
        survey=SurveyRow(
            "APE",
            parameters="d / D_max",
            differs={"parameters": "each step takes as many dimensions as there are branches"},
        ),
        exceptions=WHOLE,
        structure="tree",
    )
    needs = "tree"
    weight: nn.Parameter

    def __init__(
        self,
        spec: StackSpec,
        *,
        branching: int = 2,
        depth: int = 4,
        weighted: bool = True,
        binary: bool = False,
    ) -> None:
        super().__init__(spec)
        if branching < 1 or depth < 1:
            raise PositionError(f"branching {branching} and depth {depth} must be at least 1")
        if binary and branching != 2:
            raise PositionError(f"branching is {branching}; a binary tree has 2")
        copies = spec.dim // (branching * depth)
        if not copies:
            raise PositionError(
                f"dim {spec.dim} is too small for {depth} steps of {branching} branches, "
                f"{depth * branching} components"
            )
        self.branching, self.depth, self.weighted, self.binary = branching, depth, weighted, binary
        if weighted:
            self.weight = nn.Parameter(torch.empty(copies))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weighted:
            nn.init.uniform_(self.weight, 0.7, 0.999)

    def prepare(self, positions: Positions) -> Tensor:
        structure = self.structure(positions)
        device, structure = structure.edges.device, structure.on_cpu
        parents, branch, way = structure.parents, structure.child_index, structure.ancestors
        assert parents is not None
        if self.binary:
            parents, branch = left_child_right_sibling(parents)
            way = ancestors(parents, structure.valid)
        if branch.numel() and int(branch.max()) >= self.branching:
            sample, node = (int(i) for i in (branch >= self.branching).nonzero()[0])
            raise PositionError(
                f"tree {sample}: node {node} is child {int(branch[sample, node]) + 1} of its parent; "
                f"branching is {self.branching}"
            )
        way = F.pad(way, (0, max(0, self.depth - way.shape[-1])), value=-1)[..., : self.depth]
        steps = torch.where(
            way < 0,
            -1,
            branch.masked_fill(parents < 0, -1)[:, :, None].expand_as(way).gather(1, way.clamp(min=0)),
        )
        pushed = F.one_hot(steps + 1, self.branching + 1)[..., 1:]  # (batch, N, depth, branching)
        return self._weighted(structure.at(pushed).to(device))

    def _weighted(self, pushed: Tensor) -> Tensor:
        """Map (batch, T, depth, branching) to (batch, T, dim)."""
        if not self.weighted:
            encoded = pushed.flatten(2).to(torch.get_default_dtype())
        else:
            p = torch.tanh(self.weight)
            powers = p[:, None] ** torch.arange(self.depth, device=p.device)
            powers = powers * ((1 - p.square()) * self.spec.dim / 2).sqrt()[:, None]
            encoded = (pushed[:, :, None] * powers[:, :, None]).flatten(2)
        return F.pad(encoded, (0, self.spec.dim - encoded.shape[-1]))
