"""DA-Transformer: Distance-aware Transformer (Wu, Wu, Huang 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.card import Card, SurveyRow
from floater.encodings.context import AttentionContext
from floater.encodings.model import PositionModel
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("da_transformer")
class DATransformer(PositionModel):
    """Positive logits are multiplied by a learned sigmoid of the distance; negative ones become zero.

    ReLU(A) R / sqrt(head_dim), R_ts = (1 + exp(v)) / (1 + exp(v - w |s - t|)), a w and a v per head for all
    blocks. R is 1 at distance 0; with w < 0 it falls to 0, with w > 0 it rises to 1 + exp(v). The survey's
    equations 16 and 17 are the specification. It does not distinguish left from right. Positions may be real.
    w starts of the order of 1 / max_length, so that R changes over the training length.

    Example:
        >>> model = DATransformer(StackSpec(dim=8, heads=2, layers=3, max_length=16))
        >>> model.prepare(Positions.arange(5)).diagonal(dim1=-2, dim2=-1).eq(1).all()
        tensor(True)
    """

    card = Card(
        paper="Wu et al. 2021",
        link="https://aclanthology.org/2021.naacl-main.166",
        stacks={"encoder": "text classification"},
        point="relative",
        equation="ReLU(q_t k_s) / sqrt(d_h) * (1 + exp(v)) / (1 + exp(v - w |t - s|))",
        parameters="2 * h",
        survey=SurveyRow("MAM", recurring=True, unbound=True, parameters="2*h"),
    )

    reads_content = False

    def __init__(self, spec: StackSpec) -> None:
        super().__init__(spec)
        self.w, self.v = nn.Parameter(torch.empty(spec.heads)), nn.Parameter(torch.empty(spec.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.w, std=1 / self.spec.max_length)
        nn.init.zeros_(self.v)

    def prepare(self, positions: Positions) -> Tensor:
        dtype = at_least_float32(self.w.dtype)  # half precision has no odd distances above 2,048
        w, v = self.w[:, None, None].to(dtype), self.v[:, None, None].to(dtype)
        far = positions.delta.abs()[:, None].to(dtype)
        return (F.logsigmoid(w * far - v) - F.logsigmoid(-v)).exp().to(self.w.dtype)

    def logits(self, logits: Tensor, q: Tensor, k: Tensor, context: AttentionContext[Tensor]) -> Tensor:
        return logits.relu() * context.state
