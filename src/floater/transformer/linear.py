"""Linear attention: kernels of queries and keys instead of the softmax of their products."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from floater.flow.precision import without_autocast

_CHUNK = 64  # tokens between which sums of keys and values are kept


def feature(x: Tensor) -> Tensor:
    """Return elu(x) + 1, above zero (Katharopoulos et al. 2020, equation 7).

    Example:
        >>> feature(torch.tensor([0.0, 2.0])).tolist()
        [1.0, 3.0]
    """
    return F.elu(x) + 1


def feature_count(width: int) -> int:
    """Return the number of random features of the Performer for vectors of a width, w ln w.

    Example:
        >>> feature_count(64)
        266
    """
    return max(1, int(width * math.log(width)))


@functools.lru_cache(maxsize=64)
def directions(count: int, width: int, seed: int, device: torch.device) -> Tensor:
    """Return the random directions of the Performer's features: normal vectors, orthogonal width by width.

    Choromanski et al. 2021, sections 2.4 and B.

    Args:
        count: number m of directions.
        width: width of queries and keys.
        seed: seed, which decides on them.
        device: device of the result.

    Returns:
        (count, width), float32.

    Example:
        >>> w = directions(3, 4, 0, torch.device("cpu"))
        >>> (w @ w.T).abs().round(decimals=4).triu(1).count_nonzero().item()
        0
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-count // width)
    normal = torch.randn(2, blocks, width, width, generator=generator, dtype=torch.float64, device="cpu")
    unit, triangle = torch.linalg.qr(normal[0])
    # the signs that LAPACK chooses depend on the vectors, and would bias the features
    unit = (unit * triangle.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]).mT
    rows: Tensor = (unit * normal[1].norm(dim=-1, keepdim=True)).flatten(0, 1)[:count]
    return rows.to(device, torch.float32)


def random_features(x: Tensor, w: Tensor, *, queries: bool) -> Tensor:
    """Return exp(w_r x - |x|^2 / 2), whose products of a query and a key are exp(q k) in expectation.

    Choromanski et al. 2021, lemma 1, up to a factor of each query that cancels in the ratio of sums. Features
    of keys end at e^70, so that sums of them stay finite; only keys near a long direction reach it.

    Args:
        x: (..., width).
        w: (m, width), `directions`.
        queries: whether the vectors are queries.

    Example:
        >>> x = torch.zeros(1, 2)
        >>> random_features(x, torch.ones(3, 2), queries=True)
        tensor([[1., 1., 1.]])
    """
    exponent = x @ w.mT
    if queries:  # |q|^2 / 2 is a factor of the query, too
        return (exponent - exponent.detach().amax(-1, keepdim=True)).exp()
    return (exponent - x.square().sum(-1, keepdim=True) / 2).clamp(max=70).exp()


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
    w: Tensor | None = None,
) -> Tensor:
    """Return sum_s f(q_t) f(k_s) v_s / sum_s f(q_t) f(k_s), f applied to sqrt(scale) q and sqrt(scale) k.

    Katharopoulos et al. 2020, "Transformers are RNNs", section 3, f = elu + 1; or with `w` the Performer's
    random features (Choromanski et al. 2021), which estimate the softmax of the scaled products. The cost
    grows with T; only with a mask for each query (packed documents) does it grow with T S.

    Args:
        q: (batch, heads, T, width).
        k: (batch, heads, S, width), S >= T; the queries are the last T of the S tokens.
        v: (batch, heads, S, head_dim).
        scale: factor of the dot products, split between queries and keys.
        mask: bool mask of the keys that a query may attend to, (batch, 1, 1, S) or (batch, 1, T, S).
        causal: a query attends to its own and earlier tokens only.
        w: (m, width), directions of random features; None for elu + 1.

    Returns:
        (batch, heads, T, head_dim); zeros where a query may attend to nothing, and where no random feature of
        its keys is above the smallest number of float32 (keys whose squared norm times scale exceeds 160).

    Example:
        >>> x = torch.zeros(1, 1, 3, 2)
        >>> v = torch.tensor([[1.0], [2.0], [6.0]])[None, None]
        >>> linear_attention(x, x, v, scale=1.0).flatten().tolist()
        [3.0, 3.0, 3.0]
    """
    wide = torch.promote_types(v.dtype, torch.float32)  # sums over a text pass the range of float16
    with without_autocast(v):
        q, k = q.to(wide) * scale**0.5, k.to(wide) * scale**0.5
        out = _ratio(q, k, v.to(wide), mask, causal, w)
    return out.to(v.dtype)


def _ratio(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, w: Tensor | None) -> Tensor:
    """Return `linear_attention` of scaled queries and keys."""
    if w is None:
        q, k = feature(q), feature(k)
    else:
        w = w.to(q.dtype)
        q, k = random_features(q, w, queries=True), random_features(k, w, queries=False)
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
    ratio = out[..., :-1] / total.clamp(min=torch.finfo(total.dtype).tiny)
    return torch.where(total > 0, ratio, 0.0)


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
