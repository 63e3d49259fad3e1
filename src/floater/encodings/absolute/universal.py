"""Universal Transformers (Dehghani et al. 2019): sinusoids of the position and of the layer."""

from __future__ import annotations

from floater.encodings.absolute.sinusoidal import Sinusoidal
from floater.encodings.card import Card, SurveyRow
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec


@register("universal")
class Universal(Sinusoidal):
    """Every block adds sin(t w) + sin(n w) to its input, with its number n counted from 1.

    Section 2.1 of the paper, equation 6 there; Dufter et al. 2022, equation 24, which is printed with t and l
    inside the exponent: read sin(10000^{-j/d} t) + sin(10000^{-j/d} l). The frequencies are the paper's; the
    released program has others, counts layers from 0, learns the vectors of layers by default, and drops the
    embeddings out before it adds to them. One layer for all steps is
    `FloaterConfig.share_layers`, for this and every other model.

    Raises:
        PositionError: if dim is odd.

    Example:
        >>> Universal(StackSpec(dim=4, heads=1, layers=3, max_length=16)).blocks
        (0, 1, 2)
    """

    card = Card(
        paper="Dehghani et al. 2019",
        link="https://arxiv.org/abs/1807.03819",
        stacks={"encoder": "translation, questions", "causal": "language models", "decoder": "translation"},
        point="absolute",
        equation="x^n_t + p_t + p_n; p_{t,2j} = sin(t / 10000^{2j/d}), p_{t,2j+1} = cos(t / 10000^{2j/d})",
        survey=SurveyRow("APE", learnable=False, recurring=True, unbound=True, parameters="0"),
    )

    sites = ("self", "decoder")

    def __init__(self, spec: StackSpec) -> None:
        super().__init__(spec, blocks="all")
