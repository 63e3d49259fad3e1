"""Encoding Word Order in Complex Embeddings (Wang et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.encodings.absolute.tokens import even
from floater.encodings.card import Card, SurveyRow
from floater.encodings.model import Frame, PositionModel, register
from floater.flow.stepping import wide_dtype
from floater.positions import Positions


@register("complex")
class Complex(PositionModel):
    """Words are complex vectors r exp(i (w t + theta)) whose phases turn with the position t.

    Section 2.2 of the paper; Dufter et al. 2022, equation 8. Component k is the pair (2k, 2k + 1) of the
    embedding, its real and imaginary part: so amplitude r and first phase theta are what the word's own row
    of the embedding table holds, and the only new parameters are the frequencies w, one per complex
    component and shared by all words (one of the paper's schemes of sharing). They start at those of the
    sinusoids.

    Not here: frequencies of each word's own, which need the ids of the words and not only their embeddings,
    and complex projections and attention. The blocks read real and imaginary parts as real numbers.

    Args:
        frame: the stack of blocks it serves; dim must be even.

    Raises:
        PositionError: if dim is odd.

    Example:
        >>> model = Complex(Frame(dim=2, heads=1, layers=1, max_length=16))
        >>> x = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
        >>> model.embed(x, model.prepare(Positions.arange(2))).detach()[0, 1]  # cos 1, sin 1
        tensor([0.5403, 0.8415])
    """

    card = Card(
        paper="Wang et al. 2020",
        link="https://arxiv.org/abs/1912.12333",
        point="absolute",
        equation="x_{t,k} exp(i w_k t), x_{t,k} = r_k exp(i theta_k) complex",
        parameters="d // 2",
        survey=SurveyRow(
            "absolute",
            "-",
            learnable=True,
            recurring=False,
            unbound=True,
            parameters="2*n*d",
            differs={
                "injection": "it changes the input embeddings, if by a product instead of a sum",
                "parameters": "frequencies are shared by all words, and first phases are part of the "
                "embedding table",
            },
        ),
    )

    def __init__(self, frame: Frame) -> None:
        super().__init__(frame)
        even(frame)
        self.frequency = nn.Parameter(torch.empty(frame.dim // 2))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        pairs = torch.arange(0, self.frame.dim, 2, device=self.frequency.device)
        self.frequency.copy_(10000 ** (-pairs / self.frame.dim))

    def prepare(self, positions: Positions) -> tuple[Tensor, Tensor]:
        wide = wide_dtype(positions.query.device)
        angle = positions.query.to(wide)[..., None] * self.frequency.to(wide)
        return angle.cos(), angle.sin()

    def embed(self, x: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        cos, sin = (part.to(x.dtype) for part in state)
        real, imaginary = x.reshape(*x.shape[:-1], self.frame.dim // 2, 2).unbind(-1)
        turned = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1)
        return turned.flatten(-2)
