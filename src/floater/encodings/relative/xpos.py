"""A Length-Extrapolatable Transformer: rotary positions whose products decay (Sun et al. 2023, section 2)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from floater.encodings.absolute.tokens import query_ends
from floater.encodings.card import Card
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import QKV, PositionModel, Stage
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.rotary import check_pairs, planes, turn
from floater.encodings.relative.waves import Waves, frequencies
from floater.encodings.spec import StackSpec
from floater.positions import Positions

_GAMMA = 0.4


class XPosState(NamedTuple):
    """State of a forward pass, shared by the blocks.

    Args:
        query: sines and cosines times zeta^t, for queries.
        key: sines and cosines times zeta^-t, for keys.
        largest: the logarithm of the largest factor.
        farthest: the farthest position.
    """

    query: tuple[Tensor, Tensor]
    key: tuple[Tensor, Tensor]
    largest: float
    farthest: float


@register("xpos")
class XPos(PositionModel):
    """Queries and keys are rotated and scaled so that their products decay with the distance (Algorithm 1).

    Pair i of a query at t is multiplied by zeta_i^(t / scale_base), of a key at s by the inverse, zeta_i =
    (2i / head_dim + 0.4) / 1.4. A product of pair i then has the factor zeta_i^((t - s) / scale_base): at
    most 1 for earlier keys, as a language model reads them. The paper is causal only. In a stack that also
    reads later keys attention still depends on distances alone, but products with later keys grow, by up to
    3.5 for 512 tokens: use another encoding there.

    The released code subtracts half the length from all positions, which cancels in the products. This
    centre depends on the length, so cached keys would become invalid; positions are not centred here. The
    factors leave the range of float32 after about 27,000 tokens and that of float16 after about 3,400;
    positions beyond raise an error. The paper's blockwise causal attention at test time is not part of it.

    Args:
        pairs: components that rotate together: "interleaved", 2i and 2i + 1; "half", i and i + head_dim / 2.
        base: base of the frequencies, above 1.
        scale_base: tokens over which pair i decays by zeta_i; positive.

    Raises:
        PositionError: if head_dim is odd or an option is not valid; in `qkv`, if a position is beyond the
            range of the numbers.

    Example:
        >>> model = XPos(StackSpec(dim=2, heads=1, layers=1, max_length=16))
        >>> x = torch.ones(1, 1, 1, 2)
        >>> q, k, _ = model.qkv(x, x, x, AttentionContext(model.prepare(Positions.arange(1, offset=512)), 0))
        >>> [round(float(y.norm() / x.norm()), 4) for y in (q, k)]  # 0.4 / 1.4 and its inverse
        [0.2857, 3.5]
    """

    card = Card(
        paper="Sun et al. 2023",
        link="https://arxiv.org/abs/2212.10554",
        stacks={"causal": "language models"},
        point="relative",
        equation="sum_i zeta_i^{(t-s)/512} Re(q_i k_i* exp(i (t-s) w_i)), s <= t, zeta_i = (2i/d_h + .4)/1.4",
    )

    stage = Stage.ROTATE

    def __init__(
        self, spec: StackSpec, *, pairs: str = "interleaved", base: float = 10000.0, scale_base: float = 512.0
    ) -> None:
        super().__init__(spec)
        self.head_dim = check_pairs(spec, pairs, base)
        self.planes = planes(pairs, self.head_dim)
        if not scale_base > 0:
            raise PositionError(f"scale_base is {scale_base}; it must be positive")
        self.pairs, self.base, self.scale_base = pairs, base, scale_base

    def prepare(self, positions: Positions) -> XPosState:
        query = positions.query
        waves = Waves.of(query, frequencies(self.head_dim, self.base, query.device), torch.float64)
        pair = torch.arange(0, self.head_dim, 2, dtype=torch.float64, device=query.device)
        zeta = (pair / self.head_dim + _GAMMA) / (1 + _GAMMA)
        factor = zeta ** (query.double()[..., None, None] / self.scale_base)
        sin, cos = waves.sin.transpose(1, 2), waves.cos.transpose(1, 2)  # (batch or 1, T, 1, head_dim / 2)
        far = max(map(abs, query_ends(positions)))  # no float, which of a symbolic length would be a constant
        largest = far / self.scale_base * math.log((1 + _GAMMA) / _GAMMA)
        return XPosState((sin * factor, cos * factor), (sin / factor, cos / factor), largest, far)

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[XPosState]) -> QKV:
        # a quarter of the range of exponents remains for queries, keys and their gradients
        state = context.state
        range_ = 0.75 * math.log(torch.finfo(q.dtype).max)
        if state.largest > range_:
            served = int(range_ / math.log((1 + _GAMMA) / _GAMMA) * self.scale_base)
            raise PositionError(
                f"position {state.farthest:g} scales keys beyond {q.dtype}; 'xpos' serves positions up to "
                f"{served} in it: take a larger scale_base or another encoding, such as 'rotary'"
            )
        dtype = at_least_float32(q.dtype)
        q, k = (
            turn(x, sin.to(dtype), cos.to(dtype), self.pairs)
            for x, (sin, cos) in ((q, state.query), (k, state.key))
        )
        return q, k, v
