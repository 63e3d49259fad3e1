"""CAPE: relative positions by continuous augmented positional embeddings (Likhomanenko et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from floater.encodings.absolute.tokens import even, whole_sequence
from floater.encodings.card import Card
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.flow import sinusoid
from floater.flow.precision import wide_dtype
from floater.positions import Positions


@register("cape")
class Cape(PositionModel):
    """Sinusoids of positions that are shifted and stretched at random while training.

    The mean of their sequence is subtracted from positions. In training they become (t + shift + local) x
    scale: one shift and one scale for a sequence, a local shift for each token. Evaluation is deterministic.

    Dufter et al. 2022, section 4.2, sample the scale itself from U(-log max_scale, log max_scale), which
    would reverse sentences; here its logarithm is sampled from there, as in the paper. Apart from that the
    survey is the specification.

    The mean needs the whole sequence, and would reveal its length to a causal stack: language models and
    decoders do not subtract it.

    Args:
        max_shift: largest shift of a sequence, in the unit of positions, not negative.
        max_local: largest shift of a token, not negative; up to 0.5 it keeps the order of whole numbers.
        max_scale: largest factor, and one over the smallest; at least 1.
        normalize: whether to subtract the mean; None means everywhere but in causal stacks and decoders.

    Raises:
        PositionError: if dim is odd, an option is not valid, or a causal stack would subtract the mean; in
            `prepare`, if only a part of a sequence would be normalised.

    Example:
        >>> model = Cape(StackSpec(dim=2, heads=1, layers=1, max_length=16)).eval()
        >>> model.prepare(Positions.arange(3)).tolist()
        [[-1.0, 0.0, 1.0]]
    """

    card = Card(
        paper="Likhomanenko et al. 2021",
        link="https://arxiv.org/abs/2106.03143",
        stacks={"encoder": "images, speech, translation", "decoder": "translation"},
        point="absolute",
        equation="x_t + p(t'); t' = (t - mean + shift + local_t) scale in training, t - mean else",
        exceptions={
            "shift": "the mean of the positions is taken away; causal stacks leave it",
            "cache": "the mean of the positions needs the whole text; causal stacks have none",
            "documents": "the mean is one of a row; normalize=False has none, nor have causal stacks",
        },
    )

    def __init__(
        self,
        spec: StackSpec,
        *,
        max_shift: float = 5.0,
        max_local: float = 0.5,
        max_scale: float = 1.03,
        normalize: bool | None = None,
    ) -> None:
        super().__init__(spec)
        even(spec)
        if max_shift < 0 or max_local < 0 or max_scale < 1:
            raise PositionError(
                f"max_shift is {max_shift}, max_local {max_local}, max_scale {max_scale}; "
                "shifts must not be negative, and the scale at least 1"
            )
        self.max_shift, self.max_local, self.max_scale = max_shift, max_local, max_scale
        if normalize and spec.causal:
            raise PositionError(
                "normalize is True; the mean of the positions would show a causal stack the length of its "
                "text: leave it out, which subtracts the mean where the whole text is read"
            )
        self.normalize = not spec.causal and spec.site != "decoder" if normalize is None else normalize
        if not self.normalize:
            self.card = replace(self.card, exceptions={})

    def prepare(self, positions: Positions) -> Tensor:
        query = positions.query.to(wide_dtype(positions.query.device))
        if not self.normalize:
            return query
        valid = whole_sequence(positions, "the mean of positions (normalize=True)")
        if valid is None:
            return query - query.mean(1, keepdim=True)
        return query - (query * valid).sum(1, keepdim=True) / valid.sum(1, keepdim=True).clamp(min=1)

    def embed(self, x: Tensor, state: Tensor) -> Tensor:
        if self.training:

            def drawn(largest: float, columns: int) -> Tensor:
                return (2 * torch.rand(len(x), columns, device=x.device, dtype=state.dtype) - 1) * largest

            state = state + drawn(self.max_shift, 1) + drawn(self.max_local, x.shape[1])
            state = state * drawn(math.log(self.max_scale), 1).exp()
        return x + sinusoid(state, self.spec.dim).to(x.dtype)
