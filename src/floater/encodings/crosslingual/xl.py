"""Self-Attention with Cross-Lingual Position Representation (Ding, Wang, Tao 2020): XL PE."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.encodings.absolute.tokens import even
from floater.encodings.card import Card
from floater.encodings.model import Frame, PositionError, PositionModel, one_of, register
from floater.flow import sinusoid
from floater.positions import Positions


@register("xl")
class CrossLingual(PositionModel):
    """Sinusoids of where a token stands and of where it would stand in the order of the other language.

    Dufter et al. 2022, section 4.5, are the specification; they leave open how the two are joined: here as a
    sum, or by a learned map of both. The second positions are `Positions.reordered`; whatever reorders the
    sentence is no part of this, nor is the paper's variant that gives them to some heads only.

    Args:
        frame: the stack of blocks it serves; dim must be even.
        join: "sum", or "learned": tanh(W p + V r), W and V (dim, dim).

    Raises:
        PositionError: if dim is odd, an option is not valid, or there are no second positions.

    Example:
        >>> model = CrossLingual(Frame(dim=2, heads=1, layers=1, max_length=16))
        >>> order = torch.tensor([[0, 1, 2]])
        >>> model.prepare(Positions(order, order, reordered=order.flip(1)))[0, 1]
        tensor([1.6829, 1.0806])
    """

    card = Card(
        paper="Ding et al. 2020",
        link="https://arxiv.org/abs/2004.13310",
        point="absolute",
        equation="x_t + p_t + p_{r(t)}, r the order of the other language",
    )

    def __init__(self, frame: Frame, *, join: str = "sum") -> None:
        super().__init__(frame)
        even(frame)
        one_of("join", join, ("sum", "learned"))
        self.maps = nn.ParameterList(
            nn.Parameter(torch.empty(frame.dim, frame.dim)) for _ in range(2 * (join == "learned"))
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in self.maps:
            nn.init.xavier_uniform_(weight)

    def prepare(self, positions: Positions) -> Tensor:
        if positions.reordered is None:
            raise PositionError("no reordered in the positions; this model needs second positions")
        pair = [sinusoid(place, self.frame.dim) for place in (positions.query, positions.reordered)]
        if not self.maps:
            return pair[0] + pair[1]
        return torch.tanh(sum(p.to(w.dtype) @ w.T for p, w in zip(pair, self.maps, strict=True)))

    def embed(self, x: Tensor, state: Tensor) -> Tensor:
        return x + state.to(x.dtype)
