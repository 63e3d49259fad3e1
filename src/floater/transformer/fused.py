"""PyTorch's `scaled_dot_product_attention`, where its kernels for GPUs compute the formula."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

_EXCEPT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_ALIGNMENT = 16
"""Bytes of which the kernels for float32 want rows to be a multiple."""


def may_use_cudnn(q: Tensor) -> bool:
    """Return whether PyTorch may choose cuDNN's kernel, which averages all values if a query sees no key.

    Example:
        >>> may_use_cudnn(torch.zeros(1, dtype=torch.bfloat16))  # it computes on GPUs
        False
    """
    return q.is_cuda and q.dtype in (torch.bfloat16, torch.float16)


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    addend: Tensor | None = None,
    *,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Compute attention by PyTorch's fused kernels, except where those for GPUs fail.

    Rows that are not aligned, such as those of keys with more columns, are copied. cuDNN's kernel has
    gradients of NaN with an `addend`, S % 128 == 64 keys and low logits (PyTorch issue 196678), so another
    one computes these lengths.

    Args:
        q: (batch, heads, T, head_dim).
        k: (batch, heads, S, head_dim).
        v: (batch, heads, S, head_dim).
        addend: what is added to the logits, or a bool mask of what is visible, broadcastable to
            (batch, heads, T, S).
        dropout: dropout of the weights.
        causal: whether query t may attend to the keys up to t only, without an `addend`.
        scale: factor of the products; None for 1 / sqrt(head_dim).

    Returns:
        (batch, heads, T, head_dim).

    Example:
        >>> x = torch.ones(1, 1, 2, 4)
        >>> fused_attention(x, x, x, causal=True).shape
        torch.Size([1, 1, 2, 4])
    """
    if q.is_cuda and not torch.compiler.is_compiling():
        q, k, v = _aligned(q), _aligned(k), _aligned(v)
    low = may_use_cudnn(q) and addend is not None and k.shape[2] % 128 == 64
    with sdpa_kernel(_EXCEPT_CUDNN) if low else nullcontext():
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=addend, dropout_p=dropout, is_causal=causal, scale=scale
        )


def _aligned(x: Tensor) -> Tensor:
    numbers = max(1, _ALIGNMENT // x.element_size())
    return x if all(step % numbers == 0 for step in x.stride()[:-1]) else x.contiguous()
