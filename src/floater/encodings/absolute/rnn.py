"""A recurrent network instead of a flow (Liu et al. 2020, section 4.3, equation 14, Table 6)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from floater.encodings.absolute.added import AddedVectors
from floater.encodings.absolute.tokens import query_ends, whole_numbers
from floater.encodings.card import Card
from floater.encodings.checks import one_of
from floater.encodings.errors import PositionError
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.encodings.stored import Stored
from floater.flow import sinusoid
from floater.flow.precision import without_autocast
from floater.positions import Positions

_FARTHEST = 2**20
"""Number of positions whose vectors are computed, one after another: minutes of a core."""


@register("rnn")
class Recurrent(Stored, AddedVectors):
    """p_{i+1} = RNN(z_i, p_i), one cell for all blocks and a starting vector per block.

    One layer: p' = tanh(W1 p + u1 z + b1). Two layers: p' = tanh(W2 tanh(W1 p + u1 z + b1) + u2 z + b2), the
    index z entering both. The first token gets the starting vector. With a scalar z the cell has 263,168 or
    526,336 parameters at dim 512, as in Table 6. With a sinusoid as z, one layer has
    2 x 512 x 512 + 512 = 524,800: half of the 1,050.0 K of Table 6, which no plain cell gives. The released
    program has a GRU of two layers over the index instead, whose states are biases of queries, keys and
    values.

    The scalar z is the index i itself; its weights start at a scale of 1 / max_length, so that tanh does not
    saturate within the training length.

    Args:
        input: "scalar" (z = i) or "vector" (z = the sinusoid of i).
        depth: 1 or 2 layers.
        blocks: "input", "all", or a list of block indices.

    Raises:
        PositionError: if an option is not valid, or dim is odd with input "vector"; in `prepare`, if a
            position is 2^20 or more.

    Example:
        >>> model = Recurrent(StackSpec(dim=512, heads=8, layers=6, max_length=128))
        >>> sum(parameter.numel() for parameter in model.cells.parameters())
        263168
    """

    card = Card(
        paper="Liu et al. 2020",
        link="https://arxiv.org/abs/2003.09229",
        stacks={"encoder": "translation", "decoder": "translation"},
        point="absolute",
        equation="x_t + p_t; p_{t+1} = tanh(W1 p_t + u1 z_t + b1)",
        parameters="d * d + 2 * d + l * d",
        exceptions={"real": "a recurrent network counts tokens"},
    )

    start: nn.Parameter

    def __init__(
        self, spec: StackSpec, *, input: str = "scalar", depth: int = 1, blocks: str | list[int] = "all"
    ) -> None:
        super().__init__(spec, blocks)
        one_of("input", input, ("scalar", "vector"))
        one_of("depth", depth, (1, 2))
        if input == "vector" and spec.dim % 2:
            raise PositionError(f"dim is {spec.dim}; input='vector' needs an even one")
        self.input = input
        z_dim = 1 if input == "scalar" else spec.dim
        self.cells = nn.ModuleList(nn.Linear(spec.dim + z_dim, spec.dim) for _ in range(depth))
        self.start = nn.Parameter(torch.empty(len(self.blocks), spec.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        dim = self.spec.dim
        nn.init.normal_(self.start, std=0.02)
        with torch.no_grad():
            for cell in self.cells:
                assert isinstance(cell, nn.Linear)
                nn.init.xavier_normal_(cell.weight)
                nn.init.zeros_(cell.bias)
                if self.input == "scalar":
                    nn.init.normal_(cell.weight[:, dim:], std=1 / self.spec.max_length)

    def prepare(self, positions: Positions) -> tuple[Sequence[Tensor], Tensor]:
        query = whole_numbers(positions, "rnn")
        length = query_ends(positions)[1] + 1
        if length > _FARTHEST:
            raise PositionError(
                f"position {length - 1} is too far: 'rnn' computes the vectors of at most {_FARTHEST} "
                "positions, in turn"
            )
        with without_autocast(query):  # rounding would add up over the length
            return self.look_up(torch.arange(length, device=query.device), self.states), query

    def states(self, at: Tensor, last: Tensor | None = None, *_: float) -> Tensor:
        """Return the states of consecutive positions, (N, blocks, dim).

        Args:
            at: the positions (N,).
            last: states (blocks, dim) at the position before the first; None if the first is 0, the start.
        """
        p: list[Tensor] = [self.start if last is None else last]
        index = at[:-1] if last is None else at - 1
        z = index[:, None] if self.input == "scalar" else sinusoid(index, self.spec.dim, dtype=p[0].dtype)
        for row in z.to(p[0].dtype):
            state = p[-1]
            for cell in self.cells:
                state = torch.tanh(cell(torch.cat([state, row.expand(len(state), -1)], dim=1)))
            p.append(state)
        return torch.stack(p if last is None else p[1:])

    def vectors(self, state: tuple[Sequence[Tensor], Tensor], layer: int) -> Tensor:
        p, query = state
        return p[self.blocks.index(layer)][query]
