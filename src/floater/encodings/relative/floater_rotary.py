"""A flow that rotates queries and keys: dp/dt = A p with a learned skew matrix A."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from floater.encodings.card import Card
from floater.encodings.checks import one_of
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import QKV, Stage
from floater.encodings.precise import Precise, at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.rotary import check_pairs, planes, turn
from floater.encodings.relative.waves import UNCOVERED, covered, frequencies
from floater.encodings.spec import StackSpec
from floater.flow.linear_systems import solve
from floater.positions import Positions


class Turned(NamedTuple):
    """Sines and cosines, (batch or 1, T, heads, head_dim / 2), and bases, of one block or (blocks, ...)."""

    sin: Tensor
    cos: Tensor
    basis: Tensor | None  # Q, (blocks, heads, head_dim, head_dim)


@register("floater_rotary")
class FloaterRotary(Precise):
    """Queries and keys follow a learned flow that keeps their norm, dp/dt = A p with A = S - S^T.

    Its solution exp(t A) p is exact for all t. A real skew matrix is A = Q B Q^T, Q orthogonal and B made of
    2 x 2 blocks that rotate at frequencies w, so exp(t A) = Q R(t) Q^T with the R(t) of rotary positions. The
    product of exp(t A) q and exp(s A) k depends on s - t alone. Each head of each block has its own w; they
    start as rotary's, which makes the model equal to `rotary` before training.

    The spectral theorem also limits what such a flow can add: the outer Q cancels in the product, and Q^T q
    equals the output of another query projection. With projections that train, learned frequencies are
    therefore all of the flow that is new; basis="learned" adds Q for projections that do not, at 1/2 (d / h -
    1) d l parameters more.

    A frequency moves the phase at distance t by t times its own change. The parameter is therefore the
    phase that a pair gains over max_length tokens, in units of `rate` radians: a step of the optimizer
    changes phases within the training span by at most `rate` times the length of the step.

    Relatives: Su et al. 2021 (A fixed and block-diagonal), LieRE (Ostmeier et al. 2025), ComRoPE (Yu et al.
    2025), GRAPE (Zhang et al. 2026), all with rotations exp(t A).

    Args:
        pairs: components that rotate together: "interleaved", 2i and 2i + 1; "half", i and i + head_dim / 2.
        base: base of the frequencies before training, above 1.
        basis: "fixed" (Q is the identity) or "learned".
        uncovered: pairs whose initial period exceeds max_length tokens: "keep" them, "cut" their frequency to
            zero, or "round" all periods to whole tokens.
        rate: radians over max_length tokens that a parameter of 1 adds; positive.

    Raises:
        PositionError: if head_dim is odd or an option is not valid.

    Example:
        >>> from floater import build
        >>> model, rotary = (build(name, dim=8, heads=2, layers=1, max_length=16)
        ...                  for name in ("floater_rotary", "rotary"))
        >>> x = torch.randn(1, 5, 2, 4)
        >>> contexts = [AttentionContext(m.prepare(Positions.arange(5)), 0) for m in (model, rotary)]
        >>> q, other = (m.qkv(x, x, x, context)[0] for m, context in zip((model, rotary), contexts))
        >>> torch.allclose(q, other, atol=1e-6)
        True
    """

    card = Card(
        paper="Liu et al. 2020",
        link="https://arxiv.org/abs/2003.09229",
        point="relative",
        equation="q_t^T exp((s-t) A) k_s; dp/dt = A p, A = S - S^T = Q B Q^T, B of blocks [[0, -w], [w, 0]]",
        parameters="l * d // 2",
        also=("https://arxiv.org/abs/2104.09864",),
    )

    stage = Stage.ROTATE

    def __init__(
        self,
        spec: StackSpec,
        *,
        pairs: str = "interleaved",
        base: float = 10000.0,
        basis: str = "fixed",
        uncovered: str = "keep",
        rate: float = 1.0,
    ) -> None:
        super().__init__(spec)
        self.turned = check_pairs(spec, pairs, base)
        self.planes = planes(pairs, self.turned)
        one_of("basis", basis, ("fixed", "learned"))
        one_of("uncovered", uncovered, UNCOVERED)
        if not rate > 0:
            raise PositionError(f"rate is {rate}; it must be positive")
        self.pairs, self.base, self.uncovered, self.rate = pairs, base, uncovered, rate
        shape = spec.layers, spec.heads
        self.phase = nn.Parameter(torch.empty(*shape, self.turned // 2, dtype=at_least_float32()))
        self.generator = None
        if basis == "learned":
            entries = self.turned * (self.turned - 1) // 2
            self.generator = nn.Parameter(torch.empty(*shape, entries, dtype=at_least_float32()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    @property
    def frequencies(self) -> Tensor:
        """Return the frequencies w, (blocks, heads, head_dim / 2) in float64."""
        span = self.spec.max_length
        start = covered(frequencies(self.turned, self.base, self.phase.device), span, self.uncovered)
        return start + self.phase.double() * (self.rate / span)

    @property
    def basis(self) -> Tensor | None:
        """Return the bases Q, (blocks, heads, head_dim, head_dim); None if they are the identity.

        Cayley's transform of a skew matrix K, (1 - K)^-1 (1 + K), reaches every rotation without eigenvalue
        -1 at the cost of one solve.
        """
        if self.generator is None:
            return None
        row, column = torch.triu_indices(self.turned, self.turned, 1, device=self.generator.device)
        generator = self.generator.to(at_least_float32(self.generator.dtype))  # sharded, it may be narrower
        upper = generator.new_zeros(*generator.shape[:-1], self.turned, self.turned)
        upper[..., row, column] = generator
        skew = upper - upper.mT
        one = torch.eye(self.turned, dtype=skew.dtype, device=skew.device)
        return solve(one - skew, one + skew)

    def prepare(self, positions: Positions) -> Turned:
        at = positions.query[None, :, :, None, None]
        return Turned(*self._waves(at.double() * self.frequencies[:, None, None]), self.basis)

    def _waves(self, angle: Tensor) -> tuple[Tensor, Tensor]:
        if self.phase.dtype == torch.float32:  # the angle is exact; its sine needs no more digits than q has
            angle = angle.remainder(2 * torch.pi).float()
        return angle.sin(), angle.cos()

    def prepare_times(self, positions: Positions) -> tuple[Tensor, Tensor | None]:
        """Return the frequencies and the bases of all blocks; see `TimedRotation`."""
        return self.frequencies, self.basis

    def turns_at(
        self, times: Tensor, state: tuple[Tensor, Tensor | None], layer: int, angles: Tensor | None = None
    ) -> Turned:
        """Return sines and cosines (batch or 1, T, heads, pairs) and the basis; see `TimedRotation`."""
        at, basis = state
        angle = times.double() * at[layer]
        angle = angle if angles is None else angle + angles
        return Turned(*self._waves(angle), None if basis is None else basis[layer])

    def rotate(self, x: Tensor, turns: Turned) -> Tensor:
        """Rotate queries or keys (batch, T, heads, head_dim) by the rotations of one block."""
        sin, cos = (part.to(at_least_float32(x.dtype)) for part in (turns.sin, turns.cos))
        if turns.basis is not None:
            # Q^T q and Q^T k; the outer Q of exp(t A) cancels in their product
            x = torch.einsum("bthi,hij->bthj", x, turns.basis.to(x.dtype))
        return turn(x, sin, cos, self.pairs)

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[Turned]) -> QKV:
        turns = Turned(*(None if part is None else part[context.layer] for part in context.state))  # type: ignore[arg-type]
        return self.rotate(q, turns), self.rotate(k, turns), v
