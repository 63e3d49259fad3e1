"""A Generalization of Transformer Networks to Graphs (Dwivedi, Bresson 2020, section 2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import one_of
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.encodings.structural.base import WHOLE, Structured
from floater.positions import Positions
from floater.structures.graph_features import laplacian_vectors


@register("laplacian")
class Laplacian(Structured):
    """Laplacian eigenvectors are projected and added to the embeddings; nodes attend to their neighbours.

    L = I - D^-1/2 A D^-1/2; the eigenvectors of the smallest eigenvalues but the first, zeros where a graph
    has fewer. Their sign is arbitrary: in training each is flipped at random, else the component of greatest
    size is positive. Edges count in both directions. A node attends to itself only if it has an edge to
    itself; one without edges attends to nothing. Subwords have the neighbours of their word.

    The authors' code projects with `Linear(k, dim)`, bias included, which the survey's count of 0 excludes;
    `projection=False` pads the k components to dim instead. It also clamps logits to [-5, 5], for a
    softmax without a maximum, which is not done here.

    Args:
        vectors: number k of eigenvectors.
        projection: learned projection to dim.
        attention: "neighbours" or "all".

    Raises:
        PositionError: if an option is not valid, or the positions have no structure.

    Example:
        >>> model = Laplacian(StackSpec(dim=8, heads=2, layers=1, max_length=16), vectors=2)
        >>> state = model.prepare(Positions.graph([[(0, 1), (1, 2)]]))
        >>> state[0].shape, model.mask(AttentionContext(state, 0))[0, 0].int().tolist()
        (torch.Size([1, 3, 2]), [[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    """

    card = Card(
        paper="Dwivedi and Bresson 2020",
        link="https://arxiv.org/abs/2012.09699",
        stacks={"encoder": "graphs"},
        point="absolute",
        equation="x_t + C l_t + c, l_t the Laplacian eigenvectors at t; attention to neighbours",
        parameters="vectors * d + d",
        survey=SurveyRow(
            "APE",
            learnable=False,
            unbound=True,
            parameters="0",
            differs={
                "injection": "the mask of neighbours changes the attention matrix; attention='all' has none",
                "learnable": "the eigenvectors are projected to the width of the model",
                "recurring": "every block has the mask",
                "parameters": "the projection and its bias",
            },
        ),
        exceptions=WHOLE,
        structure="graph",
    )
    needs = "graph"

    def __init__(
        self, spec: StackSpec, *, vectors: int = 8, projection: bool = True, attention: str = "neighbours"
    ) -> None:
        super().__init__(spec)
        one_of("attention", attention, ("neighbours", "all"))
        if vectors < 1 or (not projection and vectors > spec.dim):
            limit = "at least 1" if projection else f"from 1 to dim {spec.dim} without projection"
            raise PositionError(f"vectors is {vectors}; it must be {limit}")
        self.count, self.attention = vectors, attention
        self.project = nn.Linear(vectors, spec.dim) if projection else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.project is not None:
            self.project.reset_parameters()

    def prepare(self, positions: Positions) -> tuple[Tensor, Tensor | None]:
        """Return the eigenvectors (batch or 1, T, k), and the mask (batch or 1, 1, T, T), or None."""
        structure = self.structure(positions)
        derived = structure.on_cpu
        vectors = laplacian_vectors(derived.neighbours, derived.valid, self.count).to(structure.edges.device)
        if self.training:
            sign = torch.randint(0, 2, (len(vectors), 1, self.count), device=vectors.device) * 2 - 1
            vectors = vectors * sign
        mask = structure.between(structure.neighbours)[:, None] if self.attention == "neighbours" else None
        return structure.at(vectors), mask

    def embed(self, x: Tensor, state: tuple[Tensor, Tensor | None]) -> Tensor:
        if self.project is None:
            return x + nn.functional.pad(state[0], (0, self.spec.dim - self.count)).to(x.dtype)
        added: Tensor = self.project(state[0].to(self.project.weight.dtype))
        return x + added.to(x.dtype)

    def mask(self, context: AttentionContext[tuple[Tensor, Tensor | None]]) -> Tensor | None:
        return context.state[1]
