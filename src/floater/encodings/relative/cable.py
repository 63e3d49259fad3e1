"""Context-aware Biases for Length Extrapolation (Veisi et al. 2025)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.card import Card
from floater.encodings.context import AttentionContext
from floater.encodings.model import QKV, PositionModel, Stage, scale_as_projected
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.forgetting import sums_between
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("cable")
class Cable(PositionModel):
    """Each token decides how far it pushes earlier tokens away, and each query how much distance costs it.

    Head h of a block adds -g_t (c_{s+1} + ... + c_t) to the logit of query t and key s, with steps
    c_l = relu(w_c x_l + b_c) and a slope g_t = softplus(w_s x_t + b_s) of the block's input x (section 3,
    equations 2 to 7): ALiBi with a distance and a slope that depend on the text. Positions are not read, only
    the order of the tokens.

    The code of the first version of the paper has no slope, and softplus for relu: `forgetting` with w and b
    negated. No code of the version above was available; that the projections have biases b, which start at
    zero, is taken from the first. Equation 7 has no sign; by the text the bias is a penalty. In a stack that
    reads later keys, the distance of a key after its query is the sum of the steps after the query, the key's
    included. In the cache a key carries its step.

    Example:
        >>> model = Cable(StackSpec(dim=4, heads=2, layers=1, max_length=16))
        >>> _ = nn.init.zeros_(model.weight), nn.init.ones_(model.weight_bias[:, :2])  # steps of 1
        >>> x = torch.zeros(1, 3, 4)
        >>> context = AttentionContext(model.prepare(Positions.arange(3)), 0, x)
        >>> q, k, _ = model.qkv(*[x.view(1, 3, 2, 2)] * 3, context)
        >>> model.bias(q.transpose(1, 2), k.transpose(1, 2), context)[0, 0, 2]  # softplus(0) = log 2
        tensor([-1.3863, -0.6931, -0.0000], grad_fn=<SelectBackward0>)
    """

    card = Card(
        paper="Veisi et al. 2025",
        link="https://arxiv.org/abs/2503.08067",
        stacks={"encoder": "BERT", "causal": "language models"},
        point="relative",
        equation="q_t k_s / sqrt(d_h) - softplus(w_s x_t + b_s) sum_{l=s+1}^t relu(w_c x_l + b_c)",
        parameters="2 * l * h * (d + 1)",
    )
    derives_positions = True

    stage = Stage.APPEND
    reads_content = False
    scale = scale_as_projected

    def __init__(self, spec: StackSpec) -> None:
        super().__init__(spec)
        self.weight = nn.Parameter(torch.empty(spec.layers, 2, spec.heads, spec.dim))  # w_c, then w_s
        self.weight_bias = nn.Parameter(torch.empty(spec.layers, 2 * spec.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for matrix in self.weight.flatten(0, 1):
            self.spec.init_linear(matrix)
        nn.init.zeros_(self.weight_bias)

    def prepare(self, positions: Positions) -> Tensor | None:
        return positions.key_valid

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[Tensor | None]) -> QKV:
        x, layer = context.x, context.layer
        weight, bias = self.weight[layer].flatten(0, 1).to(x.dtype), self.weight_bias[layer].to(x.dtype)
        step, slope = F.linear(x, weight, bias)[..., None].to(k.dtype).chunk(2, -2)
        # each next to a zero of the other: the dot product sees neither
        q = torch.cat([F.pad(q, (0, 1)), F.softplus(slope)], -1)
        return q, F.pad(torch.cat([k, F.relu(step)], -1), (0, 1)), v

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[Tensor | None]) -> Tensor:
        dtype = at_least_float32(k.dtype)
        slope, step = q[..., -1:].to(dtype), k[..., -2].to(dtype)
        return -slope * sums_between(step, context.state, q.shape[2])
