"""On the Importance of Word Order Information in Cross-lingual Sequence Labeling (Liu et al. 2021b)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.absolute.tokens import skip_padding, whole_numbers, whole_sequence
from floater.encodings.card import Card
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("convolution")
class Convolution(PositionModel):
    """A one-dimensional convolution over the embeddings instead of positions: only the local order is known.

    Dufter et al. 2022, section 4.5, are the specification; they leave open where the convolution acts: here
    it is added to the embeddings, where position vectors would be. Padding is read as zeros.

    Args:
        kernel: width of the convolution in tokens, at least 1; odd unless the stack is causal, where it reads
            earlier tokens only.

    Raises:
        PositionError: if an option is not valid, positions are real, or decoding has a cache.

    Example:
        >>> import torch
        >>> model = Convolution(StackSpec(dim=4, heads=1, layers=1, max_length=16))
        >>> model.embed(torch.zeros(1, 5, 4), model.prepare(Positions.arange(5))).shape
        torch.Size([1, 5, 4])
    """

    card = Card(
        paper="Liu et al. 2021b",
        link="https://arxiv.org/abs/2001.11164",
        stacks={"encoder": "sequence labelling"},
        point="relative",
        equation="x_t + b + sum_j W_j x_{t+j}, |j| <= kernel // 2",
        parameters="kernel * d * d + d",
        exceptions={
            "real": "a convolution counts tokens",
            "cache": "a convolution reads neighbours that a cache does not hold",
            "documents": "a convolution reads over the ends of documents",
        },
    )
    derives_positions = True

    def __init__(self, spec: StackSpec, *, kernel: int = 3) -> None:
        super().__init__(spec)
        if kernel < 1 or not (spec.causal or kernel % 2):
            raise PositionError(f"kernel is {kernel}; it must be at least 1, and odd unless causal")
        self.convolution = nn.Conv1d(spec.dim, spec.dim, kernel)

    def reset_parameters(self) -> None:
        self.convolution.reset_parameters()

    def prepare(self, positions: Positions) -> Tensor | None:
        whole_numbers(positions, "convolution")
        return whole_sequence(positions, "a convolution")

    def embed(self, x: Tensor, state: Any) -> Tensor:
        (kernel,) = self.convolution.kernel_size
        before = kernel - 1 if self.spec.causal else kernel // 2

        def along(y: Tensor) -> Tensor:
            padded = F.pad(y.transpose(1, 2), (before, kernel - 1 - before))
            out: Tensor = self.convolution(padded).transpose(1, 2)
            return y + out.to(y.dtype)

        return skip_padding(x, state, along)
