"""Linear attention: kernels of queries and keys instead of the softmax of their products."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_CHUNK = 64  # tokens between which sums of keys and values are kept


def feature(x: Tensor) -> Tensor:
    """Return elu(x) + 1, above zero (Katharopoulos et al. 2020, equation 7).

    Example:
        >>> feature(torch.tensor([0.0, 2.0])).tolist()
        [1.0, 3.0]
    """
    return F.elu(x) + 1


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Return sum_s f(q_t) f(k_s) v_s / sum_s f(q_t) f(k_s), f = elu + 1 of q and k times sqrt(scale).

    Katharopoulos et al. 2020, "Transformers are RNNs", section 3. The cost grows with T; only with a mask for
    each query (packed documents) does it grow with T S.

    Args:
        q: (batch, heads, T, width).
        k: (batch, heads, S, width), S >= T; the queries are the last T of the S tokens.
        v: (batch, heads, S, head_dim).
        scale: factor of the dot products, split between queries and keys.
        mask: bool mask of the keys that a query may attend to, (batch, 1, 1, S) or (batch, 1, T, S).
        causal: a query attends to its own and earlier tokens only.

    Returns:
        (batch, heads, T, head_dim); zeros where a query may attend to nothing.

    Example:
        >>> x = torch.zeros(1, 1, 3, 2)
        >>> v = torch.tensor([[1.0], [2.0], [6.0]])[None, None]
        >>> linear_attention(x, x, v, scale=1.0).flatten().tolist()
        [3.0, 3.0, 3.0]
    """
    q, k = feature(q * scale**0.5), feature(k * scale**0.5)
    length, slots = q.shape[2], k.shape[2]
    more = torch.cat([v, torch.ones_like(v[..., :1])], -1)  # the last column sums the weights
    if mask is not None and mask.shape[2] > 1:
        weights = (q @ k.transpose(-1, -2)) * mask
        if causal:
            weights = weights.tril(slots - length)
        out = weights @ more
    else:
        if mask is not None:
            k = k * mask.transpose(-1, -2)
        out = _causal(q, k, more) if causal else q @ (k.transpose(-1, -2) @ more)
    total = out[..., -1:]
    return torch.where(total > 0, out[..., :-1] / total.clamp(min=torch.finfo(total.dtype).tiny), 0.0)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute sum_{s <= t} q_t k_s v_s, chunk by chunk."""
    length, slots = q.shape[2], k.shape[2]
    before = k[:, :, : slots - length].transpose(-1, -2) @ v[:, :, : slots - length]
    k, v = k[:, :, slots - length :], v[:, :, slots - length :]
    out = []
    for a, b, c in zip(*(torch.split(x, _CHUNK, 2) for x in (q, k, v)), strict=True):
        out.append((a @ b.transpose(-1, -2)).tril() @ c + a @ before)
        before = before + b.transpose(-1, -2) @ c
    return torch.cat(out, 2)
