"""RoFormer: Enhanced Transformer with Rotary Position Embedding (Su et al. 2021, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from floater.encodings.card import Card, SurveyRow
from floater.encodings.model import Frame, PositionError, PositionModel, one_of, register
from floater.encodings.precise import at_least_float32
from floater.encodings.relative.waves import Waves, frequencies
from floater.positions import Positions


@register("rotary")
class Rotary(PositionModel):
    """Queries and keys are rotated by angles that grow with their position (equations 14, 15 and 34).

    Component pairs turn by t / base^(2i / head_dim); the product of query t and key s then depends on the
    positions only through s - t. The survey's equation 26 writes the rotation in the opposite sense, which
    gives the same products. Values are left alone; positions may be real.

    Args:
        frame: the stack of blocks it serves; head_dim must be even.
        pairs: "interleaved", components 2i and 2i + 1 (the paper); "half", components i and i + head_dim / 2
            (GPT-NeoX and most models since).
        base: of the frequencies, above 1.

    Raises:
        PositionError: if head_dim is odd or an option is not valid.

    Example:
        >>> model = Rotary(Frame(dim=4, heads=2, layers=1, max_length=16))
        >>> x = torch.tensor([1.0, 0.0]).expand(1, 2, 2, 2)
        >>> q, _, _ = model.qkv(x, x, x, model.prepare(Positions.arange(2)), 0)
        >>> q[0, 1, 0]  # cos 1, sin 1
        tensor([0.5403, 0.8415])
    """

    card = Card(
        paper="Su et al. 2021",
        link="https://arxiv.org/abs/2104.09864",
        point="relative",
        equation="(R_t W_q x_t)^T (R_s W_k x_s), R_t rotates pair i by t / 10000^{2i/d_h}",
        survey=SurveyRow("relative", "MAM", learnable=False, recurring=True, unbound=True, parameters="0"),
    )

    def __init__(self, frame: Frame, *, pairs: str = "interleaved", base: float = 10000.0) -> None:
        super().__init__(frame)
        one_of("pairs", pairs, ("interleaved", "half"))
        if not base > 1:
            raise PositionError(f"base is {base}; it must be above 1")
        self.head_dim = frame.dim // frame.heads
        if self.head_dim % 2:
            raise PositionError(f"head_dim is {self.head_dim}; rotary positions need an even one")
        self.pairs, self.base = pairs, base

    def prepare(self, positions: Positions) -> tuple[Tensor, Tensor]:
        query = positions.query
        waves = Waves.of(query, frequencies(self.head_dim, self.base, query.device), torch.float64)
        return waves.sin.transpose(1, 2), waves.cos.transpose(1, 2)  # (batch or 1, T, 1, head_dim / 2)

    def qkv(
        self, q: Tensor, k: Tensor, v: Tensor, state: tuple[Tensor, Tensor], layer: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = at_least_float32(q.dtype)
        sin, cos = (part.to(dtype) for part in state)
        return self.rotate(q, sin, cos), self.rotate(k, sin, cos), v

    def rotate(self, x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
        """x (batch, T, heads, head_dim), each pair turned."""
        if self.pairs == "half":
            a, b = x.chunk(2, -1)
            return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)
