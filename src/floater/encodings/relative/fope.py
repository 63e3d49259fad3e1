"""Fourier Position Embedding: Enhancing Attention's Periodic Extension (Hua et al. 2025)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.card import Card
from floater.encodings.checks import at_least_zero
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import QKV, PositionModel, Stage
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.rotary import check_pairs, planes, turn
from floater.encodings.relative.waves import Waves, frequencies
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("fope")
class FoPE(PositionModel):
    """Every pair of components is rotated by a Fourier series of the position instead of one wave.

    The frequencies are those of `rotary` whose period fits into the training length; the others are zero. In
    head h of a block, pair i has sum_m a_{mi} cos(w_m t) and sum_m b_{mi} sin(w_m t) in place of cos(w_i t)
    and sin(w_i t). As in the released code, a and b are the identity, its rows spread over the frequencies,
    plus normal numbers of Xavier's size times `gain`; they are not trained. At most half of the pairs
    have a series. The others have a sine and a cosine of 1, which is not a rotation by zero but doubles their
    products. As a differs from b, products do not depend on s - t alone. The paper's listing divides each
    column of a and b by its sum, which the released code does only with `fourier_norm`, off by default, and
    which is not here.

    Args:
        spec: the stack of blocks; head_dim must be a multiple of 4, and at least one period of
            rotary positions, 2 pi, must fit into max_length.
        base: base of the frequencies, above 1.
        gain: gain of Xavier's initialisation of the coefficients that are added to the identity, at least 0;
            the authors take 0.3 to 0.6, more for larger models.
        learned: whether the coefficients learn.

    Raises:
        PositionError: if head_dim is not a multiple of 4, no frequency is left, or an option is not valid.

    Example:
        >>> model = FoPE(StackSpec(dim=8, heads=2, layers=1, max_length=16), gain=0.0)
        >>> x = torch.tensor([1.0, 1.0, 0.0, 0.0]).expand(1, 2, 2, 4)
        >>> q, _, _ = model.qkv(x, x, x, AttentionContext(model.prepare(Positions.arange(2)), 0))
        >>> q[0, 1, 0]  # cos 1 and 1, sin 1 and 1
        tensor([0.5403, 1.0000, 0.8415, 1.0000])
    """

    card = Card(
        paper="Hua et al. 2025",
        link="https://arxiv.org/abs/2412.17739",
        stacks={"causal": "language models"},
        point="relative",
        equation="rotary, pair i by sum_m a_{mi} cos(w_m t), sum_m b_{mi} sin(w_m t); w_m t_max >= 2 pi",
        exceptions={"shift": "sines and cosines have coefficients of their own"},
    )

    stage = Stage.ROTATE

    def __init__(
        self, spec: StackSpec, *, base: float = 10000.0, gain: float = 0.3, learned: bool = False
    ) -> None:
        super().__init__(spec)
        width = check_pairs(spec, "half", base)
        self.planes = planes("half", width)
        if width % 4:
            raise PositionError(f"head_dim is {width}; 'fope' needs a multiple of 4")
        at_least_zero(gain=gain)
        self.base, self.gain, self.width = base, gain, width
        waves = int((frequencies(width, base, torch.device("cpu")) * spec.max_length >= 2 * math.pi).sum())
        if not waves:
            raise PositionError(
                f"max_length is {spec.max_length}; no period of rotary positions fits into it, the shortest "
                "has 6.28 tokens"
            )
        shape = spec.layers, spec.heads, waves, min(waves, width // 4)
        for name in ("sine", "cosine"):
            if learned:
                setattr(self, name, nn.Parameter(torch.empty(shape)))
            else:
                self.register_buffer(name, torch.empty(shape))
        self.sine: Tensor
        self.cosine: Tensor
        self.reset_parameters()

    def reset_parameters(self) -> None:
        waves, series = self.sine.shape[-2:]
        step = math.ceil(waves / series)
        chosen = torch.arange(0, waves, step, device=self.sine.device)
        with torch.no_grad():
            for coefficients in (self.sine, self.cosine):
                for block in coefficients:  # Xavier's size counts the heads as the released code does
                    nn.init.xavier_normal_(block, gain=self.gain)
                coefficients[:, :, chosen, torch.arange(len(chosen), device=chosen.device)] += 1.0

    def prepare(self, positions: Positions) -> Waves:
        at = frequencies(self.width, self.base, positions.query.device)[: self.sine.shape[-2]]
        waves = Waves.of(positions.query, at, torch.float64)
        return Waves(waves.sin.transpose(1, 2), waves.cos.transpose(1, 2))  # (batch or 1, T, 1, waves)

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[Waves]) -> QKV:
        dtype = at_least_float32(q.dtype)
        sin, cos = (
            self._series(waves, coefficients[context.layer]).to(dtype)
            for waves, coefficients in ((context.state.sin, self.sine), (context.state.cos, self.cosine))
        )
        return turn(q, sin, cos, "half"), turn(k, sin, cos, "half"), v

    def _series(self, waves: Tensor, coefficients: Tensor) -> Tensor:
        # in double precision, in which autocast rounds no product
        series = torch.einsum("btow,hws->bths", waves, coefficients.to(waves.dtype))
        return F.pad(series, (0, self.width // 2 - series.shape[-1]), value=1.0)
