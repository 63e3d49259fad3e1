"""Group Representational Position Encoding: path integrals (Zhang et al. 2026, section 5)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.card import Card
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import QKV, PositionModel, Stage, scale_as_projected
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.alibi import slopes
from floater.encodings.relative.rotary import turn
from floater.encodings.spec import StackSpec
from floater.positions import Positions

State = tuple[Tensor | None, Tensor, Tensor]


@register("grape_ap")
class GrapeAP(PositionModel):
    """Every token between a key and a query lowers the logit, by as much as it fits the query.

    Head h of a block adds m_h (psi_{t,s+1} + ... + psi_{t,t}) to the logit of query t and key s, with
    psi_{t,l} = log sigmoid(p_t R_l norm(p_l) / width) <= 0 (section 5, path-integral additive GRAPE), p a
    projection of the block's input to `width` components, norm the root mean square norm, R_l the rotation of
    all pairs by l radians, and m the slopes of ALiBi: forget gates that depend on the query, too. As in the
    released code, and not in the paper, the query's p is not normalised, and R turns components i and
    i + width / 2 backwards. Nothing rotates p_t, so that the bias reads the positions of tokens, not their
    distances.

    The authors' Transformers also normalise queries and keys. The paper is causal; here a key after its query
    is lowered by the tokens after the query, the key included. Positions may be real. In the cache keys carry
    R_l norm(p_l).

    Args:
        spec: the stack of blocks.
        width: components of p of a head, an even number; 8 in the authors' runs.

    Raises:
        PositionError: if the width is odd or below 2.

    Example:
        >>> model = GrapeAP(StackSpec(dim=4, heads=2, layers=1, max_length=16))
        >>> _ = nn.init.zeros_(model.weight)  # psi is log(1/2)
        >>> x = torch.zeros(1, 3, 4)
        >>> context = AttentionContext(model.prepare(Positions.arange(3)), 0, x)
        >>> q, k, _ = model.qkv(*[x.view(1, 3, 2, 2)] * 3, context)
        >>> model.bias(q.transpose(1, 2), k.transpose(1, 2), context)[0, 0, 2] / slopes(2)[0]
        tensor([-1.3863, -0.6931, -0.0000], grad_fn=<DivBackward0>)
    """

    card = Card(
        paper="Zhang et al. 2026",
        link="https://arxiv.org/abs/2512.07805",
        stacks={"causal": "language models"},
        point="both",
        equation="q_t k_s / sqrt(d_h) + m sum_{l=s+1}^t log sigmoid(p_t R_l norm(p_l) / width), p = W x, "
        "m = 2^{-8 i / h}",
        parameters="l * h * width * d",
    )

    stage = Stage.APPEND
    reads_content = False
    scale = scale_as_projected

    def __init__(self, spec: StackSpec, *, width: int = 8) -> None:
        super().__init__(spec)
        if width < 2 or width % 2:
            raise PositionError(f"width is {width}; it must be an even number, at least 2")
        self.width = width
        self.weight = nn.Parameter(torch.empty(spec.layers, spec.heads * width, spec.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for block in self.weight:
            self.spec.init_linear(block)

    def prepare(self, positions: Positions) -> State:
        """Return the mask of the keys that are tokens, and sines and cosines (batch or 1, T, 1, 1)."""
        angle = -positions.query.double()[:, :, None, None]
        return positions.key_valid, angle.sin(), angle.cos()

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[State]) -> QKV:
        x, (_, sin, cos) = context.x, context.state
        p = F.linear(x, self.weight[context.layer].to(x.dtype)).view(*k.shape[:-1], self.width)
        dtype, none = at_least_float32(x.dtype), (0, self.width)
        turned = turn(F.rms_norm(p.to(dtype), (self.width,)), sin.to(dtype), cos.to(dtype), "half")
        # each next to zeros of the other: the dot product sees neither
        q = torch.cat([F.pad(q, none), p.to(q.dtype)], -1)
        return q, F.pad(torch.cat([k, turned.to(k.dtype)], -1), none), v

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[State]) -> Tensor:
        valid, width, dtype = context.state[0], self.width, at_least_float32(k.dtype)
        fit = (q[..., -width:] @ k[..., -2 * width : -width].mT).to(dtype) / width
        psi = F.logsigmoid(fit) * slopes(self.spec.heads, k.device).to(dtype)[:, None, None]
        if valid is not None:
            psi = psi.masked_fill(~valid[:, None, None], 0.0)
        total = psi.cumsum(-1)
        at_query = total.diagonal(total.shape[-1] - total.shape[-2], -2, -1)
        return -(at_query[..., None] - total).abs()
