"""Scaling Stick-Breaking Attention: An Efficient Implementation and In-depth Study (Tan et al. 2025)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from floater.encodings.card import Card
from floater.encodings.context import AttentionContext
from floater.encodings.model import PositionModel
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("stick_breaking")
class StickBreaking(PositionModel):
    """Each key takes a share of the attention that nearer keys leave, instead of a softmax.

    A_ts = beta_ts prod_l (1 - beta_tl) with beta = sigmoid(q_t k_s / sqrt(d_h)) and l the keys between s and
    t: the nearest key with a large logit gets most weight, without any positional parameter. The weights of a
    query sum to at most 1, and a query does not attend to itself, by default, as in the released code.
    Positions are not read, only the order of the tokens.

    The paper is causal. In a stack that reads later keys, keys of both sides are taken by their distance in
    tokens, an earlier key before a later one as far: the geometric attention of the Neural Data Router
    (Csordas et al. 2022, section 3.2).

    The released kernel returns the weighted sum and, separately, the remainder, 1 - sum of the weights. Its
    test adds remainder times v_t. So did the authors' training engine (IBM/dolomite-engine), by a setting
    `sb_remainder` that was on by default. It now multiplies the remainder with a learned vector of each head,
    which is not here.

    Args:
        attend_current: whether a query attends to itself, first of all keys.
        remainder: whether the query's value takes the weight that is left, 1 - sum; the weights of a query
            then sum to 1.

    Example:
        >>> model = StickBreaking(StackSpec(dim=4, heads=1, layers=1, max_length=16, causal=True))
        >>> context = AttentionContext(model.prepare(Positions.arange(1, offset=3)), 0)
        >>> model.weights(torch.zeros(1, 1, 1, 4), context)
        tensor([[[[0.1250, 0.2500, 0.5000, 0.0000]]]])
    """

    card = Card(
        paper="Tan et al. 2025",
        link="https://arxiv.org/abs/2410.17980",
        stacks={"causal": "language models"},
        point="relative",
        equation="sum_s beta_{ts} prod_{s<l<t} (1 - beta_{tl}) v_s, beta_{ts} = sigmoid(q_t k_s / sqrt(d_h))",
    )
    derives_positions = True

    def __init__(self, spec: StackSpec, *, attend_current: bool = False, remainder: bool = False) -> None:
        super().__init__(spec)
        self.attend_current, self.remainder = attend_current, remainder

    def prepare(self, positions: Positions) -> tuple[Tensor, Tensor | None]:
        """Return each query's own key, (T, S) bool, and the keys by their distance, (batch or 1, T, S)."""
        length, slots = positions.query.shape[1], positions.key.shape[1]
        key = torch.arange(slots, device=positions.key.device)
        diagonal = key[slots - length :, None] == key
        if self.spec.causal:
            return diagonal, None
        # the distance in tokens, without the padding between them
        count = key[None] if positions.key_valid is None else positions.key_valid.cumsum(1)
        delta = count[:, None, :] - count[:, slots - length :, None]
        # two stable sorts: by the side, then by the distance
        by_side = (delta > 0).long().argsort(dim=-1, stable=True)
        by_distance = delta.abs().gather(-1, by_side).argsort(dim=-1, stable=True)
        return diagonal, by_side.gather(-1, by_distance)

    def weights(self, logits: Tensor, context: AttentionContext[tuple[Tensor, Tensor | None]]) -> Tensor:
        diagonal, nearest = context.state
        if not self.attend_current:
            logits = logits.masked_fill(diagonal, -torch.inf)
        wide = logits.to(at_least_float32(logits.dtype))
        left = F.logsigmoid(-wide)
        if nearest is None:
            nearer = left.flip(-1).cumsum(-1).flip(-1) - left
        else:
            index = nearest[:, None].expand_as(left)
            ordered = left.gather(-1, index)
            nearer = torch.zeros_like(left).scatter(-1, index, ordered.cumsum(-1) - ordered)
        weights = (F.logsigmoid(wide) + nearer).exp()
        if self.remainder:  # as a product, which rounding does not make negative
            weights = weights + torch.where(diagonal, left.sum(-1, keepdim=True).exp(), 0.0)
        return weights.to(logits.dtype)
