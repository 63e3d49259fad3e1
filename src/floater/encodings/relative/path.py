"""PaTH Attention: Position Encoding via Accumulating Householder Transformations (Yang et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.absolute.tokens import convolve, earlier_tokens
from floater.encodings.card import Card
from floater.encodings.checks import at_least_one
from floater.encodings.context import AttentionContext
from floater.encodings.model import QKV, PositionModel, Stage, scale_as_projected
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.positions import Positions

_BLOCK = 64
"""Number of tokens whose transformations are one triangular system."""


@dataclass(frozen=True)
class PathState:
    """Mask of the keys that are tokens, (batch or 1, S) or None; for each tap of the convolution the slot
    that it reads, (batch or 1, S), -1 for none."""

    valid: Tensor | None
    taps: list[Tensor]


@register("path")
class Path(PositionModel):
    """Every token between a key and a query transforms the key, by a matrix that depends on the token.

    The logit is q_t H_t H_{t-1} ... H_{s+1} k_s / sqrt(d_h) with H_l = I - beta_l w_l w_l^T, w_l a unit
    vector and beta_l = 2 sigmoid(u x_l + c) (section 3.1): rotary positions whose rotations depend on the
    text. As in flash-linear-attention, w results from a projection of rank `rank`, a causal convolution along
    the tokens for each component, SiLU and the norm. Positions are not read, only the order of the tokens.
    There all weights start normal with one standard deviation, those of the convolution too; so they do here
    where the Transformer's have one. Else the convolution starts as torch's do.

    All products of T queries and S keys result from triangular systems (the UT transform, section 3.2), one
    for each block of tokens, in time proportional to T S. Keys carry w and beta in the cache. The paper is
    causal; a later key is transformed by the tokens between in their order, its own included: q_t H_{t+1} ...
    H_s k_s.

    Beside a rotation in a composition the logits are the rotated products plus what H_t ... H_{s+1} changes
    in the plain ones, which keeps both relative.

    Args:
        rank: rank of the projection to w.
        kernel: tokens that the convolution reads, at least 1.

    Raises:
        PositionError: if an option is not valid.

    Example:
        >>> model = Path(StackSpec(dim=4, heads=1, layers=1, max_length=16, causal=True))
        >>> w, beta = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([2.0, 2.0])  # reflections
        >>> q = k = torch.eye(2)
        >>> q @ k.mT + model.changes(q, k, w, beta)  # query 1 of key 0 is reflected by H_1
        tensor([[1., 0.],
                [0., 1.]])
    """

    card = Card(
        paper="Yang et al. 2025",
        link="https://arxiv.org/abs/2505.16381",
        stacks={"causal": "language models"},
        point="relative",
        equation="q_t (prod_{l=s+1}^t (I - beta_l w_l w_l^T)) k_s / sqrt(d_h), beta_l and w_l of token l",
        parameters="l * (2 * rank * d + kernel * d + h * (d + 1))",
    )
    derives_positions = True

    stage = Stage.APPEND
    scale = scale_as_projected

    def __init__(self, spec: StackSpec, *, rank: int = 32, kernel: int = 3) -> None:
        super().__init__(spec)
        at_least_one(rank=rank, kernel=kernel)
        self.down = nn.Parameter(torch.empty(spec.layers, rank, spec.dim))
        self.up = nn.Parameter(torch.empty(spec.layers, spec.dim, rank))
        self.convolution = nn.Parameter(torch.empty(spec.layers, kernel, spec.dim))  # own token first
        self.gate = nn.Parameter(torch.empty(spec.layers, spec.heads, spec.dim))
        self.gate_bias = nn.Parameter(torch.empty(spec.layers, spec.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weights in (self.down, self.up, self.gate):
            for block in weights:
                self.spec.init_linear(block)
        std, bound = self.spec.initializer_range, self.convolution.shape[1] ** -0.5
        if std is None:
            nn.init.uniform_(self.convolution, -bound, bound)  # torch's for convolutions
        else:
            nn.init.normal_(self.convolution, std=std)
        nn.init.zeros_(self.gate_bias)

    def prepare(self, positions: Positions) -> PathState:
        return PathState(positions.key_valid, earlier_tokens(positions, self.convolution.shape[1]))

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[PathState]) -> QKV:
        x = context.x
        down, up, gate, gate_bias = (
            part[context.layer].to(x.dtype) for part in (self.down, self.up, self.gate, self.gate_bias)
        )
        w = F.linear(F.linear(x, down), up).view(k.shape).to(k.dtype)
        beta = 2 * F.linear(x, gate, gate_bias).sigmoid()[..., None].to(k.dtype)
        return F.pad(q, (0, k.shape[-1] + 1)), torch.cat([k, w, beta], -1), v

    def logits(self, logits: Tensor, q: Tensor, k: Tensor, context: AttentionContext[PathState]) -> Tensor:
        state = context.state
        width = self.spec.dim // self.spec.heads
        dtype = at_least_float32(logits.dtype)
        q, (k, raw, beta) = q[..., :width].to(dtype), torch.split(k.to(dtype), [width, width, 1], -1)
        taps = self.convolution[context.layer].to(dtype).view(-1, self.spec.heads, 1, width)
        w = F.silu(convolve(raw, taps, state.taps))
        w = w * (w.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
        if state.valid is not None:
            beta = beta.masked_fill(~state.valid[:, None, :, None], 0.0)
        # what the transformations change is added to the plain products, which keeps a rotation of these
        return (logits + self.changes(q, k, w, beta[..., 0]) * self.scale(width)).to(logits.dtype)

    def changes(self, q: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> Tensor:
        """Return the products of queries and transformed keys, less those of queries and keys.

        Args:
            q: (..., T, head_dim), the last T of S tokens.
            k: (..., S, head_dim).
            w: (..., S, head_dim), unit vectors.
            beta: (..., S).

        Returns:
            (..., T, S).
        """
        change = _changes(q, k, w, beta, later=False)
        return change if self.spec.causal else change + _changes(q, k, w, beta, later=True)


def _changes(q: Tensor, k: Tensor, w: Tensor, beta: Tensor, *, later: bool) -> Tensor:
    """Return the changes for the keys before each query, or those for the keys after it; 0 for the others."""
    shift = k.shape[-2] - q.shape[-2]
    size = k.shape[-2] if torch.compiler.is_compiling() else _BLOCK  # a length is no number of blocks
    parts = (torch.split(part, size, -2) for part in (k, w, beta[..., None]))
    blocks = list(enumerate(zip(*parts, strict=True)))
    changes: list[Tensor] = []
    moved: Tensor | None = None  # what the blocks between change in the queries
    for index, (keys, vectors, gates) in blocks if later else blocks[::-1]:
        diagonal = shift - index * size
        system, key_dots = (gates * (vectors @ vectors.mT)).tril(-1), vectors @ keys.mT
        dots = (q if moved is None else q + moved) @ vectors.mT
        # from the side of the queries: a step of decoding has one, and many keys
        if later:
            solved = _solve(system.mT, (dots * gates.mT).triu(diagonal + 1), upper=True)
            key_dots = key_dots.triu()
        else:
            solved = _solve(system, dots.tril(diagonal), upper=False) * gates.mT
            key_dots = key_dots.tril(-1)
        change, turn = solved @ key_dots, solved @ vectors
        changes.append(-change if moved is None else moved @ keys.mT - change)
        moved = -turn if moved is None else moved - turn
    return torch.cat(changes if later else changes[::-1], -1)


def _solve(system: Tensor, rows: Tensor, *, upper: bool) -> Tensor:
    """Return X with X (1 + system) = rows, for a system above or below its diagonal."""
    solved: Tensor = torch.linalg.solve_triangular(system, rows, upper=upper, left=False, unitriangular=True)
    return solved
