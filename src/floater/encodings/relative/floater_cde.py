"""A flow that the text drives: dp/dt = A(x(t)) p with skew matrices A, which rotates queries and keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.absolute.tokens import convolve, earlier_tokens, steps
from floater.encodings.card import Card
from floater.encodings.carried import carried, carry
from floater.encodings.checks import at_least_one, at_least_zero
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import QKV, PositionModel, Stage
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.quaternions import Quaternion, conjugate, cumulative, exponential, product
from floater.encodings.relative.waves import frequencies
from floater.encodings.spec import StackSpec
from floater.flow.precision import wide_dtype, without_autocast
from floater.positions import Positions


class Driven(NamedTuple):
    """The time from the token before to each slot, (batch or 1, S), and the slots that a convolution reads.

    `query_step` is that time where a slot is no key, such as an event whose values are asked for, from the
    first token of the row where there is none before, and zero elsewhere; None if all are keys.
    """

    step: Tensor
    query_step: Tensor | None
    earlier: list[Tensor]


@register("floater_cde")
class FloaterCDE(PositionModel):
    """Queries and keys follow a linear flow whose matrix depends on the text, a controlled equation.

    Between the positions of tokens l - 1 and l a key follows dp/dt = -A_l p, A_l = B + S(W x_l + b), where
    x_l is the input of attention at token l and S fills a skew matrix. Where positions are one apart, the
    logit is q_t^T exp(-A_t) ... exp(-A_{s+1}) k_s / sqrt(d_h). The equation is FLOATER's (Liu et al. 2020,
    equation 5) with an input, as in neural controlled differential equations (Kidger et al. 2020, section 3),
    linear as in Walker et al. (2025). The input is constant between tokens, so the solution is exact.

    B rotates as `rotary` does, and W and b start at zero: the encoding is then `rotary`, and a trained model
    starts as it was. `std` starts W with small random numbers instead, which learn sooner.

    With one matrix for all tokens, as in `floater_rotary`, all rotations commute, and learned frequencies are
    all that a flow can add. Rotations in fixed planes commute, too, as those of a `clock` on `rotary`. These
    do not, so that the order of the tokens between key and query counts.

    A consists of blocks of four components. A rotation of four components is x -> a x b with unit quaternions
    a and b; exp(A) has a closed form in them, and their products along a text take 2 log2 T steps. In the
    cache keys carry W x as two numbers, for half precision, and the products are computed anew. In a stack
    that is not causal, later keys are turned by the tokens between, their own included.

    Args:
        spec: the stack of blocks; head_dim must be a multiple of 4.
        base: base of rotary's frequencies, above 1; only with `positions`.
        positions: whether B rotates; False leaves b and what the text drives.
        kernel: tokens that a causal convolution of W x reads, at least 1; it starts as the identity.
        std: standard deviation of the initial W, at least 0.

    Raises:
        PositionError: if head_dim is no multiple of 4, or an option is not valid.

    Example:
        >>> from floater import build
        >>> model, rotary = (
        ...     build(name, dim=8, heads=2, layers=1, max_length=16) for name in ("floater_cde", "rotary")
        ... )
        >>> x, positions = torch.randn(1, 5, 8), Positions.arange(5)
        >>> context = AttentionContext(model.prepare(positions), 0, x)
        >>> heads = x.view(1, 5, 2, 4)
        >>> q, k, _ = model.qkv(heads, heads, heads, context)
        >>> q, k = model.rotated(q.transpose(1, 2), k.transpose(1, 2), context)
        >>> torch.allclose(q.transpose(1, 2), rotary.rotate(heads, rotary.prepare(positions)), atol=1e-6)
        True
    """

    card = Card(
        paper="Liu et al. 2020",
        link="https://arxiv.org/abs/2003.09229",
        point="relative",
        equation="q_t^T exp(-A_t) ... exp(-A_{s+1}) k_s; dp/dt = -A_l p, A_l = B + S(W x_l + b) = -A_l^T",
        parameters="3 * l * d * (d + 1) // 2",
        also=("https://arxiv.org/abs/2005.08926", "https://arxiv.org/abs/2505.17761"),
    )

    stage = Stage.APPEND
    reads_content = False
    planes = ("blocks", 4)

    def __init__(
        self,
        spec: StackSpec,
        *,
        base: float = 10000.0,
        positions: bool = True,
        kernel: int = 1,
        std: float = 0.0,
    ) -> None:
        super().__init__(spec)
        at_least_one(kernel=kernel)
        head_dim = spec.dim // spec.heads
        if head_dim % 4:
            raise PositionError(f"head_dim is {head_dim}; 'floater_cde' needs a multiple of 4")
        if not base > 1:
            raise PositionError(f"base is {base}; it must be above 1")
        if not positions and base != 10000.0:
            raise PositionError(f"base is {base}, but positions=False leaves out rotary's frequencies")
        at_least_zero(std=std)
        self.base, self.positions, self.std = base, positions, std
        self.entries = 6 * head_dim // 4  # of the matrices of a head, above their diagonals
        self.weight = nn.Parameter(torch.empty(spec.layers, spec.heads * self.entries, spec.dim))
        self.bias_of_matrix = nn.Parameter(torch.empty(spec.layers, spec.heads * self.entries))
        self.convolution = None
        if kernel > 1:  # own token first
            self.convolution = nn.Parameter(torch.empty(spec.layers, kernel, spec.heads * self.entries))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
        nn.init.zeros_(self.bias_of_matrix)
        if self.convolution is not None:
            nn.init.zeros_(self.convolution)
            self.convolution[:, 0] = 1.0

    def check_bake(self) -> None:
        raise PositionError("the rotations of 'floater_cde' depend on the text: there is nothing to bake")

    def prepare(self, positions: Positions) -> Driven:
        kernel = 1 if self.convolution is None else self.convolution.shape[1]
        earlier = earlier_tokens(positions, max(kernel, 2))
        previous = earlier[1]
        step, query_step = steps(positions, previous), None
        if (valid := positions.key_valid) is not None:
            if positions.document is None:
                previous = torch.where(previous < 0, valid.long().argmax(1, keepdim=True), previous)
            query_step = steps(positions, previous).masked_fill(valid, 0)
            step = step.masked_fill(~valid, 0)
        return Driven(step, query_step, earlier[:kernel])

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[Driven]) -> QKV:
        x = context.x.to(at_least_float32(k.dtype))
        with without_autocast(x):
            driven = F.linear(x, self.weight[context.layer].to(x.dtype)).view(*k.shape[:-1], self.entries)
        return q, carry(k, driven), v

    def rotated(self, q: Tensor, k: Tensor, context: AttentionContext[Driven]) -> tuple[Tensor, Tensor]:
        k, driven = carried(k, self.entries, at_least_float32(k.dtype))
        skew, state = self.skew(driven, context), context.state
        turns = cumulative(exponential(skew * wide(state.step)))
        query_turns = turns
        if state.query_step is not None:  # a query that is no key turns to its own time
            query_turns = product(turns, exponential(skew * wide(state.query_step)))
        if first := k.shape[2] - q.shape[2]:
            query_turns = tuple(part[..., first:, :] for part in query_turns)
        return turned(q, query_turns), turned(k, turns)

    def skew(self, driven: Tensor, context: AttentionContext[Driven]) -> Tensor:
        """Return the matrices of the keys, (3, batch, heads, 2, S, head_dim / 4).

        A block of four components has two vectors of three: its rotations are x -> exp(a) x exp(b)^-1.

        Args:
            driven: W x, (batch, heads, S, entries).
            context: what hooks read.
        """
        layer, heads, dtype = context.layer, self.spec.heads, driven.dtype
        if self.convolution is not None:
            taps = self.convolution[layer].to(dtype).view(-1, heads, 1, self.entries)
            driven = convolve(driven, taps, context.state.earlier)
        driven = driven + self.bias_of_matrix[layer].to(dtype).view(heads, 1, self.entries)
        skew = driven.view(*driven.shape[:3], 3, 2, self.entries // 6).permute(3, 0, 1, 4, 2, 5)
        skew = skew.to(wide_dtype(skew.device), memory_format=torch.contiguous_format)
        if self.positions:
            # half the sum and half the difference of the two frequencies of a block
            w = frequencies(4 * skew.shape[5], self.base, skew.device).to(skew.dtype).view(-1, 2)
            plain = torch.stack([w.sum(1), w[:, 1] - w[:, 0]])[:, None] / 2
            zero = torch.zeros_like(plain)
            skew = skew + torch.stack([plain, zero, zero])[:, None, None]
        return skew


def wide(step: Tensor) -> Tensor:
    """Return times (batch or 1, S) in double precision, as wide as matrices."""
    return step.to(wide_dtype(step.device))[:, None, None, :, None]


def turned(x: Tensor, turns: Quaternion) -> Tensor:
    """Return a x b^-1 for each four components of x, read as a quaternion.

    Args:
        x: (batch, heads, T, head_dim).
        turns: a and b, with components of (batch, heads, 2, T, head_dim / 4).

    Example:
        >>> one, i, j, k = torch.eye(4)
        >>> turns = tuple(torch.stack(parts).view(1, 1, 2, 1, 1) for parts in zip(i, one, strict=True))
        >>> turned(j.view(1, 1, 1, 4), turns).flatten().equal(k)
        True
    """
    dtype = at_least_float32(x.dtype)
    blocks = x.to(dtype).view(*x.shape[:3], x.shape[-1] // 4, 4).permute(4, 0, 1, 2, 3).contiguous()
    left, right = zip(*(part.to(dtype).unbind(2) for part in turns), strict=True)
    out = product(product(left, tuple(blocks)), conjugate(right))
    return torch.stack(out, -1).flatten(-2).to(x.dtype)
