"""On the Relation between Position Information and Sentence Length in Neural Machine Translation (Neishi,
Yoshinaga 2019)."""

from __future__ import annotations

from torch import Tensor, nn

from floater.encodings.absolute.tokens import skip_padding, whole_numbers, whole_sequence
from floater.encodings.card import Card, SurveyRow
from floater.encodings.model import PositionModel
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("rnn_transformer")
class RNNTransformer(PositionModel):
    """A GRU over the embeddings, whose outputs the Transformer reads instead of positions.

    Section 3.2 of the paper; Dufter et al. 2022, section 4.1.2 and figure 5. The GRU runs from the first
    token to the last in encoder and decoder, skips padding, and starts at zero. The released program
    drops embeddings out before the GRU, here its outputs are; it does not scale embeddings by sqrt(d), but
    starts them sqrt(d) larger. The GRU's last state is not kept for later calls, so decoding with a cache is
    refused.

    Raises:
        PositionError: if positions are real, or decoding has a cache.

    Example:
        >>> import torch
        >>> model = RNNTransformer(StackSpec(dim=4, heads=1, layers=1, max_length=16))
        >>> model.embed(torch.zeros(2, 5, 4), model.prepare(Positions.arange(5))).shape
        torch.Size([2, 5, 4])
    """

    card = Card(
        paper="Neishi and Yoshinaga 2019",
        link="https://doi.org/10.18653/v1/K19-1031",
        stacks={"encoder": "translation", "decoder": "translation"},
        point="relative",
        equation="h_t = GRU(x_t, h_{t-1}) instead of x_t",
        parameters="6 * d * d + 6 * d",
        survey=SurveyRow(
            "-",
            unbound=True,
            parameters="6*d^2 + 3*d",
            differs={
                "injection": "it changes the input embeddings, if not by a sum",
                "unbound": "it serves any length, but the state of a GRU converges within 150 equal tokens",
                "parameters": "PyTorch's GRU has a bias for the input and one for the state; the survey "
                "counts one",
            },
        ),
        exceptions={
            "real": "a GRU counts tokens",
            "compile": "PyTorch does not compile a GRU",
            "cache": "its last state is not kept, so a GRU reads every text from its start",
            "documents": "a GRU reads over the ends of documents",
        },
    )
    derives_positions = True

    def __init__(self, spec: StackSpec) -> None:
        super().__init__(spec)
        self.gru = nn.GRU(spec.dim, spec.dim, batch_first=True)

    def reset_parameters(self) -> None:
        self.gru.reset_parameters()

    def prepare(self, positions: Positions) -> Tensor | None:
        whole_numbers(positions, "rnn_transformer")
        return whole_sequence(positions, "a GRU")

    def embed(self, x: Tensor, state: Tensor | None) -> Tensor:
        return skip_padding(x, state, lambda y: self.gru(y)[0].to(y.dtype))
