"""No position information."""

from floater.encodings.card import Card
from floater.encodings.model import PositionModel
from floater.encodings.registry import register


@register("none")
class NoPosition(PositionModel):
    """The plain Transformer: its encoder is permutation equivariant (Liu et al. 2020, section 2.1)."""

    card = Card(
        paper="Vaswani et al. 2017",
        link="https://arxiv.org/abs/1706.03762",
        stacks={"encoder": "BERT (Wang et al. 2021)", "causal": "language models (Kazemnejad et al. 2023)"},
        point="none",
        equation="x",
    )
