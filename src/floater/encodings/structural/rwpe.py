"""Graph Neural Networks with Learnable Structural and Positional Representations (Dwivedi et al. 2022)."""

from __future__ import annotations

from torch import Tensor, nn

from floater.encodings.card import Card
from floater.encodings.checks import at_least_one
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.encodings.structural.base import WHOLE, Structured
from floater.positions import Positions
from floater.structures.graph_features import walk_returns


@register("rwpe")
class RandomWalk(Structured):
    """Probabilities that a walk returns to its node after 1, 2, ... steps, projected and added (RWPE).

    Component k of a node is (D^-1 A)^k at the node itself (section 3.2); edges count in both directions.
    Unlike eigenvectors the numbers have no arbitrary sign. Subwords have those of their word.

    Args:
        steps: length of the longest walk, at least 1.

    Raises:
        PositionError: if steps is below 1, or the positions have no structure.

    Example:
        >>> model = RandomWalk(StackSpec(dim=8, heads=2, layers=1, max_length=16), steps=3)
        >>> model.prepare(Positions.graph([[(0, 1), (1, 2)]])).tolist()
        [[[0.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.0]]]
    """

    card = Card(
        paper="Dwivedi et al. 2022",
        link="https://arxiv.org/abs/2110.07875",
        stacks={"encoder": "graphs"},
        point="absolute",
        equation="x_t + C r_t + c, r_{t,k} = ((D^{-1} A)^k)_{tt}, k = 1 ... steps",
        parameters="steps * d + d",
        exceptions=WHOLE,
        structure="graph",
    )
    needs = "graph"

    def __init__(self, spec: StackSpec, *, steps: int = 16) -> None:
        super().__init__(spec)
        at_least_one(steps=steps)
        self.steps = steps
        self.project = nn.Linear(steps, spec.dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.project.reset_parameters()

    def prepare(self, positions: Positions) -> Tensor:
        structure = self.structure(positions)
        return structure.at(walk_returns(structure.neighbours, self.steps))

    def embed(self, x: Tensor, state: Tensor) -> Tensor:
        added: Tensor = self.project(state.to(self.project.weight.dtype))
        return x + added.to(x.dtype)
