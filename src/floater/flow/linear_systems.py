"""Batches of linear systems, whose matrices a CPU factorizes one after the other where they are large.

PyTorch shares the matrices of a batch among threads, in which MKL's factorization of a large one is not safe:
it hangs, or its factors are wrong (pytorch/pytorch#141358). With one thread, or one matrix at a time, it is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BATCHED = 64
"""Largest width of matrices that are factorized as a batch on a CPU. Failures begin between 144 and 192."""


def lu_factors(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Return LU factors and pivots, for `torch.linalg.lu_solve`.

    Args:
        matrices: (..., n, n); a singular one gives infinite or NaN solutions.

    Returns:
        The factors (..., n, n) and the pivots (..., n).

    Example:
        >>> factors, pivots = lu_factors(2 * torch.eye(100).expand(3, 100, 100))
        >>> torch.linalg.lu_solve(factors, pivots, torch.ones(3, 100, 1))[0, 0]
        tensor([0.5000])
    """
    factors, pivots = _by_matrix(lambda matrix: torch.linalg.lu_factor_ex(matrix)[:2], matrices)
    return factors, pivots


def solve(matrices: Tensor, right: Tensor) -> Tensor:
    """Solve one system for each matrix.

    Args:
        matrices: A (..., n, n).
        right: B (..., n, k).

    Returns:
        X with A X = B, (..., n, k).

    Raises:
        RuntimeError: if a matrix is singular.

    Example:
        >>> solve(2 * torch.eye(100).expand(3, 100, 100), torch.ones(3, 100, 1))[0, 0]
        tensor([0.5000])
    """
    (solution,) = _by_matrix(lambda a, b: (torch.linalg.solve(a, b),), matrices, right)
    return solution


def _by_matrix(function: Callable[..., tuple[Tensor, ...]], *arguments: Tensor) -> tuple[Tensor, ...]:
    matrices = arguments[0]
    if matrices.is_cuda or matrices.ndim == 2 or matrices.shape[-1] <= BATCHED or not matrices.numel():
        return function(*arguments)
    each = [function(*parts) for parts in zip(*(x.flatten(0, -3) for x in arguments), strict=True)]
    results = (torch.stack(parts) for parts in zip(*each, strict=True))
    return tuple(result.view(*matrices.shape[:-2], *result.shape[1:]) for result in results)
