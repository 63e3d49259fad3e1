"""On the Importance of Word Order Information in Cross-lingual Sequence Labeling (Liu et al. 2021b)."""

from __future__ import annotations

import torch
from torch import Tensor

from floater.encodings.absolute.learned import Learned
from floater.encodings.absolute.tokens import even
from floater.encodings.card import Card
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.encodings.untrained import Untrained
from floater.flow import sinusoid
from floater.positions import Positions


@register("shuffled")
class Shuffled(PositionModel):
    """Sinusoids in an order that is sampled for each sentence in training, and is the true one in evaluation.

    Dufter et al. 2022, section 4.5, are the specification: they shuffle the tokens of the source language.
    To an encoder that is the same as to shuffle the positions of the tokens, as is done here; padding keeps
    its own.

    Raises:
        PositionError: if dim is odd; in `prepare`, in training, if a row holds more than one document.

    Example:
        >>> model = Shuffled(StackSpec(dim=2, heads=1, layers=1, max_length=16))
        >>> x = torch.zeros(1, 9, 2)
        >>> once, twice = (model.embed(x, model.prepare(Positions.arange(9))) for _ in range(2))
        >>> torch.equal(once, twice), torch.equal(once.sort(1).values, twice.sort(1).values)
        (False, True)
    """

    card = Card(
        paper="Liu et al. 2021b",
        link="https://arxiv.org/abs/2001.11164",
        stacks={"encoder": "sequence labelling"},
        point="absolute",
        equation="x_t + p_{s(t)}, s a random permutation in training",
    )

    def __init__(self, spec: StackSpec) -> None:
        super().__init__(spec)
        even(spec)

    def prepare(self, positions: Positions) -> tuple[Tensor, Tensor | None]:
        if self.training and positions.document is not None:
            raise PositionError("the order of packed documents is not shuffled: give one document a row")
        valid = positions.key_valid
        return positions.query, None if valid is None else valid[
            :, valid.shape[1] - positions.query.shape[1] :
        ]

    def embed(self, x: Tensor, state: tuple[Tensor, Tensor | None]) -> Tensor:
        position, valid = state
        if self.training:
            padding = torch.zeros(x.shape[:2], device=x.device) if valid is None else (~valid).float()
            tokens = padding.expand(x.shape[:2]).argsort(dim=1, stable=True)
            drawn = (padding + torch.rand(x.shape[:2], device=x.device)).argsort(dim=1)
            position = position.expand(x.shape[:2])
            position = torch.empty_like(position).scatter(1, drawn, position.gather(1, tokens))
        return x + sinusoid(position, self.spec.dim, dtype=x.dtype).to(x.dtype)


@register("frozen")
class Frozen(Untrained, Learned):
    """A pretrained table of positions that is not trained further.

    Dufter et al. 2022, section 4.5, are the specification. The table is a parameter, so that it is saved and
    loaded with the model, but it gets no gradient. It is random until `fill`.

    Bounded: a position past the table is an error.

    Args:
        spec: the stack of blocks; max_length is the size of the table.

    Example:
        >>> model = Frozen(StackSpec(dim=4, heads=1, layers=1, max_length=16))
        >>> model.fill(torch.ones(16, 4))
        >>> model.embed(torch.zeros(1, 2, 4), model.prepare(Positions.arange(2))).requires_grad
        False
    """

    card = Card(
        paper="Liu et al. 2021b",
        link="https://arxiv.org/abs/2001.11164",
        stacks={"encoder": "sequence labelling"},
        point="absolute",
        equation="x_t + P_t, P fixed",
        parameters="t_max * d",
        exceptions={
            "real": "a table has nothing between whole positions",
            "gradients": "its table stays as it is",
        },
    )

    def __init__(self, spec: StackSpec) -> None:
        super().__init__(spec)
        self.train()

    def untrained(self) -> list[Tensor]:
        return [self.table(0).weight]

    @torch.no_grad()
    def fill(self, vectors: Tensor) -> None:
        """Copy the positions of a pretrained model.

        Args:
            vectors: (max_length, dim).

        Raises:
            PositionError: if the shape differs.
        """
        weight = self.table(0).weight
        if vectors.shape != weight.shape:
            raise PositionError(f"vectors are {tuple(vectors.shape)}; the table is {tuple(weight.shape)}")
        weight.copy_(vectors)

    def vectors(self, state: Tensor, layer: int) -> Tensor:
        return super().vectors(state, layer).detach()
