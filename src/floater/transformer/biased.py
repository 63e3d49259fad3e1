"""Attention with a learned bias, in the memory of attention without a bias."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from floater.flow.autograd import in_transform
from floater.flow.second_derivatives import refuse_second_derivatives

_PIECE = 2**18
"""Numbers of a piece of the logits: a megabyte, which fits a core's cache with intermediate results."""


def gradient_in_pieces(q: Tensor) -> bool:
    """Return whether to use `biased_attention`: on CPUs, in float32 or float64, without transforms.

    Example:
        >>> gradient_in_pieces(torch.zeros(1)), gradient_in_pieces(torch.zeros(1, dtype=torch.bfloat16))
        (True, False)
    """
    whole = q.dtype in (torch.float32, torch.float64)
    return q.device.type == "cpu" and whole and not torch.compiler.is_compiling() and not in_transform()


def biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Compute softmax(q k^T scale + bias) v; its backward pass computes the weights again, piece by piece.

    PyTorch's kernel for CPUs has no gradient for a bias: where one is needed, it keeps the weights of all
    heads.

    Source: Dao et al., "FlashAttention" (2022), section 3.1, whose backward pass this is, with that of the
    bias.

    Args:
        q: (batch, heads, T, head_dim).
        k: (batch, heads, S, head_dim).
        v: (batch, heads, S, head_dim).
        bias: the bias, broadcastable to (batch, heads, T, S), -inf where a query may not attend.
        scale: factor of the product.

    Returns:
        (batch, heads, T, head_dim), zero where a query may attend to nothing. Its gradient cannot be
        differentiated again.

    Example:
        >>> q, bias = torch.randn(2, 4, 3, 8), torch.zeros(4, 3, 3, requires_grad=True)
        >>> biased_attention(q, q, q, bias, 1.0).sum().backward()
        >>> bool(bias.grad.sum(-1).abs().max() < 1e-5)  # the weights of a query sum to 1, hence the sum
        True
    """
    bias = bias.view(*(1,) * (4 - bias.ndim), *bias.shape)
    out: Tensor = _Biased.apply(q, k, v, bias, scale)  # type: ignore[no-untyped-call]
    return out


class _Biased(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
        # With a mask that requires a gradient PyTorch would not use the kernel, even here.
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.detach(), scale=scale)
        ctx.scale = scale
        ctx.save_for_backward(q, k, v, bias, out)
        return out

    @staticmethod
    @refuse_second_derivatives("attention with a bias on a CPU", "model.set_attn_implementation('eager')")
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (q, k, v, bias, out), (gradient,), scale = ctx.saved_tensors, gradients, ctx.scale
        mean = (gradient * out).sum(-1, keepdim=True)
        whole = bias.expand(*q.shape[:3], k.shape[2])
        shared = bias.shape != whole.shape
        q_gradient, k_gradient, v_gradient = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        bias_gradient = torch.zeros_like(bias) if shared else torch.empty_like(bias)
        for b, heads, rows in _pieces(whole):
            query, key, above = q[b, heads, rows], k[b, heads], gradient[b, heads, rows]
            weights = torch.baddbmm(whole[b, heads, rows], query, key.mT, alpha=scale).softmax(-1)
            nothing = weights[..., :1].isnan()
            if bool(nothing.any()):
                weights.masked_fill_(nothing & out[b, heads, rows, :1].isfinite(), 0.0)
            v_gradient[b, heads].baddbmm_(weights.mT, above)
            logits_gradient = torch.bmm(
                above, v[b, heads].mT, out=None if shared else bias_gradient[b, heads, rows]
            )
            logits_gradient.sub_(mean[b, heads, rows]).mul_(weights)
            torch.bmm(logits_gradient, key, out=q_gradient[b, heads, rows]).mul_(scale)
            k_gradient[b, heads].baddbmm_(logits_gradient.mT, query, alpha=scale)
            if shared:
                at = zip((slice(b, b + 1), heads, rows, slice(None)), bias.shape, strict=True)
                part = bias_gradient[tuple(slice(None) if size == 1 else index for index, size in at)]
                part += logits_gradient.unsqueeze(0).sum_to_size(part.shape)
        return q_gradient, k_gradient, v_gradient, bias_gradient, None


def _pieces(logits: Tensor) -> Iterator[tuple[int, slice, slice]]:
    """Yield samples, heads and queries whose logits are few enough, and at least a row."""
    batch, heads, length, slots = logits.shape
    together = min(heads, max(1, _PIECE // max(1, length * slots)))
    few = min(length, max(1, _PIECE // max(1, together * slots)))
    for b in range(batch):
        for head in range(0, heads, together):
            for row in range(0, length, few):
                yield b, slice(head, head + together), slice(row, row + few)
