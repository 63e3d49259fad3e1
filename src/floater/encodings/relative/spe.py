"""Relative Positional Encoding for Transformers with Linear Complexity (Liutkus et al. 2021): SPE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from floater.encodings.absolute.tokens import query_ends, whole_numbers
from floater.encodings.card import Card, SurveyRow
from floater.encodings.checks import at_least_one
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import QKV, PositionModel, Stage
from floater.encodings.precise import Precise, at_least_float32
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.flow.precision import wide_dtype
from floater.positions import Positions

_CHUNK = 64  # tokens whose noise is sampled at once in evaluation
_FARTHEST = 2**20  # positions for which noise is sampled, one after another


class Codes(NamedTuple):
    """Random processes along the tokens, shared by all blocks.

    Args:
        query: (batch or 1, T, heads, head_dim, realizations).
        key: the same shape, correlated with `query` as the positions are.
        gate: (heads, head_dim, realizations), the same for all positions; None without gates.
    """

    query: Tensor
    key: Tensor
    gate: Tensor | None


def _seeded_noise(shape: Sequence[int], seed: int) -> Tensor:
    """Return standard normal numbers; those of a seed are always the same."""
    generator = torch.Generator().manual_seed(seed)
    # not the default dtype: another dtype would give other random numbers
    return torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _constant_noise(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return them as a constant of compiled code, in which a generator would go on from call to call."""
    with _disable_current_modes():
        return _seeded_noise(shape, seed)


class StochasticPositions(PositionModel):
    """Queries and keys filtered by correlated noise, whose product is relative attention in expectation.

    A query becomes q'_r = sum_d q_d Q_{d,r}(t), a key k'_r = sum_d k_d K_{d,r}(s), r = 1, ..., realizations,
    with E[Q_{d,r}(t) K_{d,r}(s)] = P_d(t - s). So E[q' . k'] = sum_d q_d k_d P_d(t - s) / sqrt(head_dim), up
    to noise that falls as 1 / sqrt(realizations). With gates g, learned for each block, head and component,
    P_d becomes (1 - g) P_d + g. Subclasses give the processes.

    The noise is sampled once per forward pass, for all blocks and samples. In evaluation it is sampled from
    `seed`, so that outputs are deterministic and caches valid; the released program samples it each time. The
    encoding is relative in expectation. Attention is full, or linear with `FloaterConfig.attention` =
    "linear".

    Args:
        realizations: R, the width of filtered queries and keys, at least 1.
        gated: whether to learn the share of each component that depends on content alone.
        seed: seed of the noise in evaluation, not negative.
    """

    stage = Stage.WIDEN

    def __init__(self, spec: StackSpec, realizations: int, gated: bool, seed: int) -> None:
        super().__init__(spec)
        if realizations < 1 or seed < 0:
            raise PositionError(
                f"realizations is {realizations} and seed {seed}; they must be at least 1 and 0"
            )
        self.realizations, self.seed = realizations, seed
        shape = spec.layers, spec.heads, spec.dim // spec.heads
        self.gate = nn.Parameter(torch.empty(shape)) if gated else None

    def reset_parameters(self) -> None:
        if self.gate is not None:
            nn.init.normal_(self.gate)

    def noise(self, shape: Sequence[int], like: Tensor, chunk: int = 0) -> Tensor:
        """Return standard normal numbers; in evaluation those of a chunk are always the same."""
        if self.training:
            return torch.randn(*shape, device=like.device, dtype=like.dtype)
        seeded = _constant_noise if torch.compiler.is_compiling() else _seeded_noise
        noise: Tensor = seeded(tuple(shape), self.seed + chunk)
        return noise.to(like)

    def processes(self, positions: Positions) -> tuple[Tensor, Tensor]:
        """Return Q and K at the positions of the queries: (batch or 1, T, heads, head_dim, realizations)."""
        raise NotImplementedError(f"{type(self).__name__} must define processes")

    def prepare(self, positions: Positions) -> Codes:
        head_dim = self.spec.dim // self.spec.heads
        unit = (self.realizations * head_dim) ** -0.25  # the rest of 1 / R sqrt(head_dim) is `scale`
        query, key = self.processes(positions)
        gate = None
        if self.gate is not None:
            gate = self.noise((self.spec.heads, head_dim, self.realizations), self.gate) * unit
        return Codes(query * unit, key * unit, gate)

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[Codes]) -> QKV:
        state, layer = context.state, context.layer
        return self._filter(q, state.query, state, layer), self._filter(k, state.key, state, layer), v

    def _filter(self, x: Tensor, code: Tensor, state: Codes, layer: int) -> Tensor:
        content = None
        if self.gate is not None and state.gate is not None:
            gate = self.gate[layer].sigmoid()
            content = torch.einsum("bthd,hdr->bthr", x * gate.sqrt().to(x.dtype), state.gate.to(x.dtype))
            x = x * (1 - gate).sqrt().to(x.dtype)
        code = code.to(x.dtype)
        if code.shape[0] == 1:
            out = torch.einsum("bthd,thdr->bthr", x, code[0])
        else:
            out = torch.einsum("bthd,bthdr->bthr", x, code)
        return out if content is None else out + content


@register("spe_sine")
class SineSPE(Precise, StochasticPositions):
    """SPE of sums of waves: P_d(t - s) = sum_k gain_k^2 cos(2 pi f_k (t - s) + offset_k) / 2K, learned.

    Section 2.2 of the paper; Dufter et al. 2022, section 4.1.2. Frequencies are sigmoid(.) / 2 and start low,
    gains are softplus(.), as in the released program. See `StochasticPositions`.

    Shapes: frequency, offset and gain (heads, head_dim, sines); gate (layers, heads, head_dim).

    Args:
        sines: K, waves of each component, at least 1.
        realizations: R, the width of filtered queries and keys, at least 1.
        gated: whether to learn the share of each component that depends on content alone.
        seed: seed of the noise in evaluation, not negative.

    Raises:
        PositionError: if an option is not valid.

    Example:
        >>> model = SineSPE(StackSpec(dim=4, heads=2, layers=1, max_length=16), realizations=8)
        >>> q = torch.randn(1, 3, 2, 2)
        >>> model.qkv(q, q, q, AttentionContext(model.prepare(Positions.arange(3)), 0))[0].shape
        torch.Size([1, 3, 2, 8])
    """

    card = Card(
        paper="Liutkus et al. 2021",
        link="https://arxiv.org/abs/2105.08399",
        stacks={"encoder": "long-range tasks", "causal": "music"},
        point="relative",
        equation="E[A_{ts}] = sum_d q_{t,d} k_{s,d} ((1 - g_d) P_d(t - s) + g_d) / sqrt(d_h); "
        "P_d(t - s) = sum_k a_{d,k}^2 cos(2 pi f_{d,k} (t - s) + c_{d,k}) / 2K",
        parameters="3 * sines * d + l * d",
        survey=SurveyRow(
            "MAM",
            recurring=True,
            parameters="3*K*d*h + l*d",
            differs={
                "unbound": "waves go on past any length",
                "parameters": "each head has waves for its own d / h components: 3 K (d / h) h",
            },
        ),
        exceptions={"shift": "it is relative in the mean over its noise only"},
    )

    def __init__(
        self, spec: StackSpec, *, sines: int = 5, realizations: int = 64, gated: bool = True, seed: int = 0
    ) -> None:
        super().__init__(spec, realizations, gated, seed)
        at_least_one(sines=sines)
        shape = spec.heads, spec.dim // spec.heads, sines
        self.frequency, self.offset, self.gain = (
            nn.Parameter(torch.empty(shape, dtype=at_least_float32())) for _ in range(3)
        )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.normal_(self.frequency, mean=-4.0)
        nn.init.normal_(self.offset)
        nn.init.normal_(self.gain)
        self.gain.mul_(2 / self.gain.norm(dim=-1, keepdim=True).sqrt())

    def processes(self, positions: Positions) -> tuple[Tensor, Tensor]:
        wide, dtype = wide_dtype(self.frequency.device), self.frequency.dtype
        cycles = positions.query.to(wide)[..., None, None, None] * (self.frequency.to(wide).sigmoid() / 2)
        phase = 2 * math.pi * (cycles - cycles.detach().floor())
        query, key = (
            torch.cat((angle.cos(), angle.sin()), dim=-1).to(dtype) for angle in (phase + self.offset, phase)
        )
        weight = F.softplus(self.gain).repeat(1, 1, 2)[..., None] * query.shape[-1] ** -0.5
        heads, head_dim, sines = self.gain.shape
        z = weight * self.noise((heads, head_dim, 2 * sines, self.realizations), self.gain, chunk=1)
        return torch.einsum("xthdk,hdkr->xthdr", query, z), torch.einsum("xthdk,hdkr->xthdr", key, z)


@register("spe_conv")
class ConvSPE(StochasticPositions):
    """SPE of filtered noise: P_d(t - s) = sum_i a_i b_{i + t - s}, a and b learned filters.

    Section 2.2 of the paper. P = 0 for tokens at least as far apart as the length of the
    filters. See `StochasticPositions`.

    Shapes: filters (2, heads, head_dim, kernel), for queries and for keys; gate (layers, heads, head_dim).

    Args:
        kernel: length of the filters in tokens, at least 1.
        realizations: R, the width of filtered queries and keys, at least 1.
        gated: whether to learn the share of each component that depends on content alone.
        seed: seed of the noise in evaluation, not negative.

    Raises:
        PositionError: if an option is not valid; in `prepare`, if positions are real, or those of the queries
            2^20 or more apart.

    Example:
        >>> model = ConvSPE(StackSpec(dim=4, heads=2, layers=1, max_length=16), kernel=8, gated=False)
        >>> q = torch.randn(1, 3, 2, 2)
        >>> model.qkv(q, q, q, AttentionContext(model.prepare(Positions.arange(3)), 0))[1].shape
        torch.Size([1, 3, 2, 64])
    """

    card = replace(
        SineSPE.card,
        equation="E[A_{ts}] = sum_d q_{t,d} k_{s,d} ((1 - g_d) P_d(t - s) + g_d) / sqrt(d_h); "
        "P_d(t - s) = sum_i a_{d,i} b_{d,i+t-s}",
        parameters="2 * kernel * d + l * d",
        survey=None,
        exceptions={**SineSPE.card.exceptions, "real": "a convolution counts tokens"},
    )

    def __init__(
        self, spec: StackSpec, *, kernel: int = 128, realizations: int = 64, gated: bool = True, seed: int = 0
    ) -> None:
        super().__init__(spec, realizations, gated, seed)
        at_least_one(kernel=kernel)
        self.kernel = kernel
        self.filters = nn.Parameter(torch.empty(2, spec.heads, spec.dim // spec.heads, kernel))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.uniform_(self.filters, 0.0, (2 / self.kernel) ** 0.5)

    def processes(self, positions: Positions) -> tuple[Tensor, Tensor]:
        query = whole_numbers(positions, "spe_conv")
        heads, head_dim = self.filters.shape[1:3]
        # noise is sampled in chunks, each from a seed of its own: those before the first query are not needed
        first, last = query_ends(positions)
        if last - first >= _FARTHEST:
            raise PositionError(
                f"positions {first} and {last} are too far apart: 'spe_conv' samples noise for at most "
                f"{_FARTHEST} positions, those between them included"
            )
        skipped = first // _CHUNK
        shape = self.realizations, heads * head_dim, _CHUNK
        chunks = range(skipped, (last + self.kernel - 1) // _CHUNK + 1)
        z = torch.cat([self.noise(shape, self.filters, 1 + chunk) for chunk in chunks], dim=-1)
        z = z[..., first - skipped * _CHUNK : last + self.kernel - skipped * _CHUNK]
        weights = self.filters.flatten(1, 2)[:, :, None]

        def at(weight: Tensor) -> Tensor:
            rows = F.conv1d(z, weight, groups=heads * head_dim).permute(2, 1, 0)
            return rows.reshape(rows.shape[0], heads, head_dim, self.realizations)[query - first]

        return at(weights[0]), at(weights[1])
