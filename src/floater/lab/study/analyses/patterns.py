"""Patterns by position alone of the heads of TUPE (Ke et al. 2021, section 4.4), and Toeplitz matrices."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Pattern = Literal["globally", "locally", "broadly", "to previous positions", "to next positions"]
_ONE_SIDE = 0.5
_RATIO = 2.0


def toeplitz(matrix: Tensor) -> Tensor:
    """Return the Toeplitz matrices nearest to square ones: the mean of each diagonal.

    A Toeplitz matrix depends on the distance of query and key alone, as relative positions do. Proposition 1
    of Ke et al. 2021 (after Gray 2006) factorises any of them like a product of absolute positions.

    Args:
        matrix: (..., T, T).

    Example:
        >>> toeplitz(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
        tensor([[3., 2.],
                [3., 3.]])
    """
    length = matrix.shape[-1]
    index = torch.arange(length)
    distance = (index[None, :] - index[:, None] + length - 1).flatten()
    flat = matrix.flatten(-2)
    sums = flat.new_zeros((*flat.shape[:-1], 2 * length - 1)).index_add(-1, distance, flat)
    return (sums / torch.bincount(distance))[..., distance].view(matrix.shape)


def toeplitz_share(matrix: Tensor) -> Tensor:
    """Return the share of the variance of square matrices that the nearest Toeplitz matrix explains.

    It is 1 for a Toeplitz matrix, as of relative positions, and for a constant one, and about 2 / T for
    independent random entries.

    Args:
        matrix: (..., T, T).

    Returns:
        (...,).

    Example:
        >>> index = torch.arange(4.0)
        >>> toeplitz_share(torch.stack([index[:, None] - index, index[:, None] + index])).tolist()
        [1.0, 0.0]
    """
    centred = matrix - matrix.mean((-2, -1), keepdim=True)
    rest, whole = ((each**2).sum((-2, -1)) for each in (centred - toeplitz(centred), centred))
    return torch.where(whole > 0, 1 - rest / whole, 1.0)


def first_column(logits: Tensor) -> Tensor:
    """Return how far the logits of others to position 0, as of [CLS], are above their logits to one another.

    Args:
        logits: (..., T, T).

    Returns:
        (...,), in standard deviations of the logits among the others.

    Example:
        >>> logits = torch.zeros(3, 3)
        >>> logits[:, 0], logits[1, 2], logits[2, 1] = 2, 1, -1
        >>> round(float(first_column(logits)), 3)
        2.828
    """
    others = logits[..., 1:, 1:]
    return (logits[..., 1:, 0].mean(-1) - others.mean((-2, -1))) / others.std((-2, -1), correction=0)


def pattern(logits: Tensor) -> Pattern:
    """Return which of the five patterns of Ke et al. 2021, Figure 5, the attention of a head has.

    The weights are those of the softmax among the positions other than 0. A head attends "to previous
    positions" or "to next positions" if it has over half of all weight more there than on the other side,
    compared with uniform attention; "locally" if positions at most an eighth of the length away have twice
    the weight of uniform attention; "globally", ignoring local ones, if they have half of it; and "broadly"
    otherwise. The limits are this library's: the paper has none.

    Args:
        logits: (T, T).

    Example:
        >>> distance = torch.arange(16.0)[None, :] - torch.arange(16.0)[:, None]
        >>> pattern(-distance.abs()), pattern(distance), pattern(0 * distance)
        ('locally', 'to next positions', 'broadly')
    """
    weights = logits[1:, 1:].softmax(-1)
    uniform = torch.full_like(weights, 1 / len(weights))
    index = torch.arange(len(weights))
    distance = index[None, :] - index[:, None]
    side = float(((weights - uniform) * distance.sign()).sum(-1).mean())
    if abs(side) > _ONE_SIDE:
        return "to next positions" if side > 0 else "to previous positions"
    near = distance.abs() <= max(1, len(logits) // 8)
    ratio = float((weights * near).sum() / (uniform * near).sum())
    return "locally" if ratio > _RATIO else "globally" if ratio < 1 / _RATIO else "broadly"
