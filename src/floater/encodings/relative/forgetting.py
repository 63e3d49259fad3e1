"""Forgetting Transformer: Softmax Attention with a Forget Gate (Lin et al. 2025)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.card import Card
from floater.encodings.context import AttentionContext
from floater.encodings.model import QKV, PositionModel, Stage, scale_as_projected
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("forgetting")
class Forgetting(PositionModel):
    """Each token decides by a gate how much earlier tokens are forgotten (section 3).

    Head h of a block adds log f_{s+1} + ... + log f_t to the logit of query t and key s, with
    f_l = sigmoid(w_h x_l + b_h) of the block's input x: ALiBi with a slope that depends on the text.
    Positions are not read, only the order of the tokens.

    The paper is causal; here a key after its query is forgotten by the tokens between, its own gate included:
    log f_{t+1} + ... + log f_s. At the start w has the Transformer's own initial size and b is 0, as in the
    released code, so that gates are about 1/2; x-transformers starts b at 5, where they are near one. In the
    cache a key carries its gate as one more component.

    Args:
        start: initial b, the bias of the gates; the higher, the slower a key is forgotten at first.

    Example:
        >>> model = Forgetting(StackSpec(dim=4, heads=2, layers=1, max_length=16))
        >>> _ = nn.init.zeros_(model.weight)
        >>> x = torch.zeros(1, 3, 4)
        >>> context = AttentionContext(model.prepare(Positions.arange(3)), 0, x)
        >>> q, k, _ = model.qkv(*[x.view(1, 3, 2, 2)] * 3, context)
        >>> model.bias(q.transpose(1, 2), k.transpose(1, 2), context)[0, 0, 2].exp()  # f = 1/2
        tensor([0.2500, 0.5000, 1.0000], grad_fn=<ExpBackward0>)
    """

    card = Card(
        paper="Lin et al. 2025",
        link="https://arxiv.org/abs/2503.02130",
        stacks={"causal": "language models"},
        point="relative",
        equation="q_t k_s / sqrt(d_h) + sum_{l=s+1}^t log sigmoid(w x_l + b)",
        parameters="l * h * (d + 1)",
    )
    derives_positions = True

    stage = Stage.APPEND
    reads_content = False
    scale = scale_as_projected

    def __init__(self, spec: StackSpec, *, start: float = 0.0) -> None:
        super().__init__(spec)
        self.start = start
        self.weight = nn.Parameter(torch.empty(spec.layers, spec.heads, spec.dim))
        self.gate_bias = nn.Parameter(torch.empty(spec.layers, spec.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for block in self.weight:
            self.spec.init_linear(block)
        nn.init.constant_(self.gate_bias, self.start)

    def prepare(self, positions: Positions) -> Tensor | None:
        return positions.key_valid

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[Tensor | None]) -> QKV:
        x, layer = context.x, context.layer
        weight, bias = self.weight[layer].to(x.dtype), self.gate_bias[layer].to(x.dtype)
        gate = F.logsigmoid(F.linear(x, weight, bias)).to(k.dtype)[..., None]
        return F.pad(q, (0, 1)), torch.cat([k, gate], -1), v

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[Tensor | None]) -> Tensor:
        return -sums_between(k[..., -1].to(at_least_float32(k.dtype)), context.state, q.shape[2])


def sums_between(values: Tensor, valid: Tensor | None, queries: int) -> Tensor:
    """Return the absolute sum of values from query to key, that of the earlier of the two not included.

    Args:
        values: a number of each head and each of S tokens, (batch, heads, S); all of one sign.
        valid: whether keys are tokens, (batch or 1, S); the values of others count as 0. None if all are.
        queries: number T of queries, the last tokens.

    Returns:
        (batch, heads, T, S).

    Example:
        >>> sums_between(torch.tensor([[[1.0, 2.0, 4.0, 8.0]]]), None, 2)
        tensor([[[[ 6.,  4.,  0.,  8.],
                  [14., 12.,  8.,  0.]]]])
    """
    if valid is not None:
        values = values.masked_fill(~valid[:, None], 0.0)
    total = values.cumsum(-1)
    return (total[..., total.shape[-1] - queries :, None] - total[..., None, :]).abs()
