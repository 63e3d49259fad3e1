"""Content-free biases and masks through FlexAttention, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

DEVICES = ("cuda",)
"""Devices whose kernel is fused; a CPU has SDPA and tiles, and FlexAttention has no gradient there."""

_DTYPES = torch.float32, torch.bfloat16, torch.float16
_LEAST = 16
"""Minimum width of heads in the kernel."""
_WITH_TABLE = {"num_stages": 2}
"""Triton loads a block of the table ahead for each stage; three exceed the shared memory of an H100."""


def flex_applies(q: Tensor, v: Tensor) -> bool:
    """Return whether FlexAttention computes an attention of these sizes: in uncompiled code, on a GPU.

    Args:
        q: (batch, heads, T, head_dim).
        v: (batch, heads, S, head_dim).

    Example:
        >>> flex_applies(torch.zeros(1, 1, 8, 16), torch.zeros(1, 1, 8, 16))
        False
    """
    fits = q.dtype in _DTYPES and min(q.shape[-1], v.shape[-1]) >= _LEAST and q.shape[2] > 1
    return not torch.compiler.is_compiling() and q.device.type in DEVICES and fits


def flex_learns(bias: Tensor | None) -> bool:
    """Return whether FlexAttention may compute the gradient of a bias, if it needs one.

    It adds atomically, in no fixed order: not under `torch.use_deterministic_algorithms`.

    Example:
        >>> flex_learns(torch.zeros(1, 4, requires_grad=True))
        True
    """
    learns = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    return not (learns and torch.are_deterministic_algorithms_enabled())


def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Return attention with a bias of the distance, without a bias of each pair; masked blocks are skipped.

    Source: Dong et al., "Flex Attention: A Programming Model for Generating Optimized Attention Kernels"
    (2024), and its implementation in PyTorch.

    Args:
        q: (batch, heads, T, head_dim).
        k: (batch, heads, S, head_dim).
        v: (batch, heads, S, head_dim).
        scale: factor of the products of q and k.
        bias: (heads or 1, T + S); query t and key s meet entry s - t + T - 1.
        mask: bool mask of the keys that a query may attend to, broadcastable to (batch, heads, T, S).
        causal: whether query t, counted from 0, may attend to the first S - T + 1 + t keys only.

    Returns:
        (batch, heads, T, head_dim), zero where a query may attend to nothing.
    """
    length, slots = q.shape[2], k.shape[2]
    score = None
    if bias is not None:
        # half precision would round far distances
        table = bias.to(torch.promote_types(q.dtype, torch.float32)).expand(q.shape[1], -1).contiguous()

        def score(logit: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
            return logit + table[h, s - t + length - 1]

    blocks: BlockMask | None = None
    if mask is not None:
        blocks = _masked(mask, causal, q, slots)
    elif causal:
        blocks = _causal(length, slots, q.device)
    kernel: Any = flex.flex_attention if q.device.type == "cpu" else _fused()
    options = None if score is None else _WITH_TABLE
    out: Tensor = kernel(q, k, v, score_mod=score, block_mask=blocks, scale=scale, kernel_options=options)
    return out


@cache
def _fused() -> Callable[..., Any]:
    return torch.compile(flex.flex_attention)


@lru_cache(maxsize=8)
def _causal(length: int, slots: int, device: torch.device) -> BlockMask:
    def earlier(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return s <= t + (slots - length)

    return create_block_mask(earlier, None, None, length, slots, device=device)


def _masked(mask: Tensor, causal: bool, q: Tensor, slots: int) -> BlockMask:
    length = q.shape[2]
    mask = mask.view(*(1,) * (4 - mask.ndim), *mask.shape)
    sizes = mask.shape[:2]
    mask = mask.expand(*q.shape[:3], slots)

    def allowed(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        seen = mask[b, h, t, s]
        return seen & (s <= t + (slots - length)) if causal else seen

    return create_block_mask(allowed, sizes[0], sizes[1], length, slots, device=q.device)
