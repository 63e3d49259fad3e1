"""The kernels of attention: ways to compute an `AttentionCall`, chosen once per call.

`Kernel.supports` returns whether a kernel computes a call, and `Kernel.attend` computes it. `KERNELS` lists
the kernels of each `attn_implementation` of Hugging Face, the cheapest first; the last one of a list supports
every call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from floater.encodings import PositionError
from floater.encodings.attention import AttentionCall
from floater.encodings.composed.clock import Clock
from floater.encodings.timed import TimedBias
from floater.flow.autograd import in_transform
from floater.positions.tracing import in_context_parallel
from floater.transformer.biased import biased_attention, gradient_in_pieces
from floater.transformer.flex import flex_applies, flex_attention, flex_learns
from floater.transformer.fused import fused_attention, may_use_cudnn
from floater.transformer.linear import directions, feature_count, linear_attention
from floater.transformer.tiled import tiled_attention

# queries from which tiles are faster than matrices of all pairs: products with vectors of the distance take
# 0.65 to 0.92 of the time at 256, a bias 1.12 there and 0.94 at 512
TILED_FROM, BIAS_TILED_FROM = 256, 512

# pairs of a tile of a clock's bias, and its least queries: at 1,024 tokens, 8 heads and one thread, tiles
# take 0.5 to 0.9 of the time of matrices in training, 0.3 to 0.5 without gradients
CLOCK_TILE, CLOCK_ROWS = 2**20, 16


class Kernel(Protocol):
    """A way to compute attention."""

    def supports(self, call: AttentionCall) -> bool:
        """Return whether this kernel computes a call."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Compute a call that the kernel supports.

        Returns:
            (batch, heads, T, head_dim), zero where a query may attend to no key; and the weights
            (batch, heads, T, S), None from a kernel that does not keep them.
        """


class Plain:
    """The formula itself, with a matrix of weights: for every hook, and for callers that want the weights."""

    def supports(self, call: AttentionCall) -> bool:
        """Return True: every call is one of the formula."""
        return True

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Compute logits, weights and outputs one after the other."""
        return call.attend(call.logits())


class Sdpa:
    """PyTorch's `scaled_dot_product_attention`, with a mask or a bias only where one is needed."""

    def supports(self, call: AttentionCall) -> bool:
        """Return whether position changes at most what is added to the products."""
        return not call.position.overrides("logits", "weights", "value_bias")

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Compute the outputs; the gradient of a bias is computed in pieces on a CPU."""
        mask, (q, k), bias = call.mask, call.rotated(), call.bias()
        # The kernel's own causal path needs no mask; it counts slots from the first, so not with a cache.
        visible, empty, causal = None, None, False
        if call.causal and mask is None and bias is None and call.queries == call.keys:
            causal = True  # a constant: in a graph of all lengths the comparison is a symbol
        else:
            visible = call.visible()
        if visible is not None and (torch.compiler.is_exporting() or may_use_cudnn(q)):
            # in exported code a softmax over no key may be NaN, and cuDNN's is not zero there
            empty = ~visible.any(-1, keepdim=True)
            visible = visible | empty
        factor = call.factor(visible)
        if factor is not None:
            q = q * factor
            bias = None if bias is None else bias * factor
        addend = visible
        if bias is not None:
            bias = bias.to(q.dtype)
            addend = bias if visible is None else bias.masked_fill(~visible, -torch.inf)
        if addend is not None and addend.requires_grad and not call.dropout and gradient_in_pieces(q):
            return biased_attention(q, k, call.v, addend, call.scale), None
        out = fused_attention(q, k, call.v, addend, dropout=call.dropout, causal=causal, scale=call.scale)
        return (out if empty is None else out.masked_fill(empty, 0)), None


class Tiled:
    """Terms of the distance in tiles, on a CPU: no matrix of all pairs is in memory."""

    def supports(self, call: AttentionCall) -> bool:
        """Return whether there are terms of the distance, and enough queries for tiles to be faster."""
        if call.dropout or call.temperature is not None:
            return False
        # Compiled code must not compute terms: the first condition ends it.
        if not gradient_in_pieces(call.q) or call.queries < TILED_FROM or call.terms is None:
            return False
        return call.queries >= BIAS_TILED_FROM or not call.terms.bias_alone

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Compute the outputs tile by tile."""
        terms, (q, k) = call.terms, call.rotated()
        assert terms is not None
        mask = call.key_mask if terms.has_mask else call.mask
        return tiled_attention(q, k, call.v, terms, call.scale, mask=mask, causal=call.causal), None


@dataclass(eq=False)
class _Tile(AttentionCall):
    """Some queries of an attention with a clock's bias; q and k are those of the dot products."""

    times: tuple[Tensor, Tensor] | None = None

    def rotated(self) -> tuple[Tensor, Tensor]:
        return self.q, self.k

    def bias(self) -> Tensor | None:
        clock: Any = self.position
        assert self.times is not None
        bias: Tensor = clock.inner.bias_at(*self.times, self.context.state.inner, self.context.layer)
        return bias

    def attended(self) -> Tensor:
        """Return the outputs of SDPA."""
        return Sdpa().attend(self)[0]


class TiledClock:
    """A bias at the times of a clock, in tiles of queries: no matrix of all pairs is in memory.

    The backward pass computes each tile again. These times are not consecutive, so the bias is no table of
    the distance, as `Tiled` and `Flex` read.
    """

    def supports(self, call: AttentionCall) -> bool:
        """Return whether a clock drives a bias, and enough pairs for tiles to be faster, on a CPU."""
        if not isinstance(call.position, Clock) or not isinstance(call.position.inner, TimedBias):
            return False
        if call.q.device.type != "cpu" or not Sdpa().supports(call):
            return False
        if torch.compiler.is_compiling() or in_transform() or call.queries < TILED_FROM:
            return False
        return call.q[..., 0].numel() * call.keys > CLOCK_TILE

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Compute the outputs tile by tile."""
        again: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": call.dropout > 0}
        learns = torch.is_grad_enabled()
        outs = [
            checkpoint(tile.attended, **again) if learns else tile.attended() for tile in self._tiles(call)
        ]
        return torch.cat(outs, 2), None

    @staticmethod
    def _tiles(call: AttentionCall) -> Iterator[_Tile]:
        clock, context, mask, (q, k) = call.position, call.context, call.mask, call.rotated()
        assert isinstance(clock, Clock)
        times, first = clock.times(call.k, context)[..., 0], call.keys - call.queries
        if mask is not None:
            mask = mask.expand(*mask.shape[:-2], call.queries, call.keys)
        few = max(CLOCK_ROWS, CLOCK_TILE // (q[:, :, 0, 0].numel() * call.keys))
        for start in range(0, call.queries, few):
            end = min(start + few, call.queries)
            keys = first + end if call.causal else call.keys
            part = None if mask is None else mask[..., start:end, :keys]
            tensors = q[:, :, start:end], k[:, :, :keys], call.v[:, :, :keys]
            at = times[..., first + start : first + end], times[..., :keys]
            yield _Tile(clock, context, *tensors, part, call.causal, call.dropout, call.temperature, at)


class Flex:
    """FlexAttention on a GPU: a bias of the distance, or a mask whose closed blocks are skipped."""

    def supports(self, call: AttentionCall) -> bool:
        """Return whether position adds at most a mask and a bias of the distance."""
        if call.dropout or call.temperature is not None or not flex_applies(call.q, call.v):
            return False
        if call.terms is not None and call.terms.bias_alone:
            return flex_learns(call.terms.bias)
        # Without a bias and without a mask, SDPA has a fused kernel of its own.
        return call.mask is not None and not call.position.overrides(
            "bias", "logits", "weights", "value_bias"
        )

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Compute the outputs by FlexAttention."""
        terms, (q, k) = call.terms, call.rotated()
        bias = None if terms is None else terms.bias
        mask = call.key_mask if terms is not None and terms.has_mask else call.mask
        return flex_attention(q, k, call.v, call.scale, bias=bias, mask=mask, causal=call.causal), None


class LinearKernel:
    """Attention in time that grows with T: the kernel of the configurations "linear" and "performer".

    The models that it does not support, which change the matrix of attention, are refused when a stack of
    blocks is built.

    Args:
        features: number of random features of the Performer, 0 for w ln w of the width w; None for elu + 1.
        seed: seed of their directions.
    """

    def __init__(self, features: int | None = None, seed: int = 0) -> None:
        self.features, self.seed = features, seed

    def supports(self, call: AttentionCall) -> bool:
        """Return True: a configuration with this kernel has no other."""
        return True

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Compute the outputs from sums of keys and values."""
        q, k = call.rotated()
        w, width = None, q.shape[-1]
        if self.features is not None:
            w = directions(self.features or feature_count(width), width, self.seed, q.device)
        out = linear_attention(q, k, call.v, scale=call.scale, mask=call.key_mask, causal=call.causal, w=w)
        return out, None


KERNELS: dict[str | None, Sequence[Kernel]] = {
    "eager": (Plain(),),
    "sdpa": (Tiled(), TiledClock(), Sdpa(), Plain()),
    "flex_attention": (Flex(), Tiled(), TiledClock(), Sdpa(), Plain()),
}


def kernel_for(call: AttentionCall, implementation: str | None) -> Kernel:
    """Return the first kernel of an implementation that supports a call.

    Args:
        call: the call.
        implementation: a key of `KERNELS`; SDPA's for any other.

    Example:
        >>> import floater
        >>> from floater.encodings.context import AttentionContext
        >>> q, names = torch.zeros(1, 2, 3, 4), ("none", "shaw")
        >>> models = [floater.build(name, dim=8, heads=2, layers=1, max_length=16) for name in names]
        >>> contexts = [AttentionContext(model.prepare(floater.Positions.arange(3)), 0) for model in models]
        >>> calls = [AttentionCall(model, at, q, q, q) for model, at in zip(models, contexts)]
        >>> [type(kernel_for(call, "sdpa")).__name__ for call in calls]
        ['Sdpa', 'Plain']
    """
    kernels = KERNELS.get(implementation, KERNELS["sdpa"])
    return next(kernel for kernel in kernels if kernel.supports(call))


def check_part(call: AttentionCall, kernel: Kernel) -> None:
    """Refuse an attention to which PyTorch's `context_parallel` would not bring the other processes' keys.

    Raises:
        PositionError: within `context_parallel`, unless the kernel is SDPA without bias, mask and
            temperature, and the position model reads no neighbours of a token.
    """
    if not in_context_parallel():
        return
    plain = isinstance(kernel, Sdpa) and call.mask is None and call.temperature is None
    plain = plain and not any(isinstance(part, Clock) for part in call.position.modules())
    if not plain or call.position.overrides("bias") or "documents" in call.position.card.exceptions:
        raise PositionError(
            f"context_parallel shows {type(call.position).__name__} a part of each text; it serves encodings "
            "without biases that read no other token, in SDPA without padding and documents"
        )
