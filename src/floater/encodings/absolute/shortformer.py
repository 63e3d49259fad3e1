"""Shortformer: Better Language Modeling Using Shorter Inputs (Press, Smith, Lewis 2021)."""

from __future__ import annotations

from torch import Tensor

from floater.encodings.absolute.tokens import even
from floater.encodings.card import Card, SurveyRow
from floater.encodings.context import AttentionContext
from floater.encodings.model import QKV, PositionModel
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.flow import sinusoid
from floater.positions import Positions


@register("shortformer")
class Shortformer(PositionModel):
    """Position-infused attention: sinusoids are added to the inputs of the projections of queries and keys,
    in every block.

    Section 5 of the paper; Dufter et al. 2022, equation 7. Values contain no positions, and nothing is added
    to the embeddings, so the outputs of a block do not depend on the absolute positions of its tokens. The
    paper relies on this for its cached previous subsequence: `floater.transformer.memory.Memory`, whose
    tokens get the positions from 0, and those of the current subsequence the positions after them. The
    released program counts positions from 1 and has fairseq's frequencies, 10000^(-2j/(d-2)).

    Raises:
        PositionError: if dim is odd.

    Example:
        >>> import torch
        >>> model = Shortformer(StackSpec(dim=2, heads=1, layers=1, max_length=16))
        >>> x = torch.zeros(1, 1, 2)
        >>> model.inputs(AttentionContext(model.prepare(Positions.arange(1)), 0, x))
        (tensor([[[0., 1.]]]), tensor([[[0., 1.]]]), tensor([[[0., 0.]]]))
    """

    card = Card(
        paper="Press et al. 2021",
        link="https://arxiv.org/abs/2012.15832",
        stacks={"causal": "language models"},
        point="absolute",
        equation="q_t = (x_t + p_t) W_q, k_t = (x_t + p_t) W_k, v_t = x_t W_v",
        survey=SurveyRow("APE", learnable=False, recurring=True, unbound=True, parameters="0"),
    )

    def __init__(self, spec: StackSpec) -> None:
        super().__init__(spec)
        even(spec)

    @property
    def supports_segment_memory(self) -> bool:
        """Return True: the inputs of blocks contain no positions, and each pass adds its own."""
        return True

    def prepare(self, positions: Positions) -> Tensor:
        return sinusoid(positions.query, self.spec.dim, dtype=self.dtype)

    def inputs(self, context: AttentionContext[Tensor]) -> QKV:
        x = context.x
        infused = x + context.state.to(x.dtype)
        return infused, infused, x
