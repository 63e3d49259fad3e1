"""Gauss-Legendre collocation on the unit interval: nodes, quadrature, projection, evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


def legendre(x: Tensor, degree: int) -> Tensor:
    """Values of the shifted Legendre polynomials P_0, ..., P_degree, orthogonal on [0, 1].

    Args:
        x: Points (...), also beyond [0, 1].
        degree: The last degree, at least 0.

    Returns:
        Values (..., degree + 1) by the three-term recurrence; P_k(1) = 1 exactly.

    Example:
        >>> legendre(torch.tensor([0.0, 0.5, 1.0]), 2)
        tensor([[ 1.0000, -1.0000,  1.0000],
                [ 1.0000,  0.0000, -0.5000],
                [ 1.0000,  1.0000,  1.0000]])
    """
    y = 2 * x - 1
    values = [torch.ones_like(y), y]
    for k in range(1, degree):
        values.append(((2 * k + 1) * y * values[-1] - k * values[-2]) / (k + 1))
    return torch.stack(values[: degree + 1], dim=-1)


@dataclass(frozen=True)
class Rule:
    """A Gauss-Legendre rule of N nodes on [0, 1].

    Source: Hairer, Norsett, Wanner, "Solving Ordinary Differential Equations I" (1993), section II.7.

    Args:
        nodes: The zeros c of P_N, ascending (N,).
        weights: The quadrature weights b (N,), which sum to 1.
        projection: The matrix (N, N) from values at the nodes to Legendre coefficients.
        quadrature: The matrix A (N, N) from values at the nodes to integrals from 0 to each node.
    """

    nodes: Tensor
    weights: Tensor
    projection: Tensor
    quadrature: Tensor

    def evaluation(self, x: Tensor, degree: int | None = None) -> Tensor:
        """From values at the nodes to the interpolating polynomial at points x (...): (..., N).

        A degree below N - 1 leaves out the polynomial's higher Legendre coefficients.

        Example:
            >>> rule = gauss(3)
            >>> round(float(rule.evaluation(torch.tensor(2.0).double()) @ rule.nodes**2), 9)
            4.0
        """
        kept = len(self.nodes) if degree is None else degree + 1
        return legendre(x, kept - 1) @ self.projection[:kept].to(x.device)

    def integration(self, x: Tensor) -> Tensor:
        """From values at the nodes to the interpolating polynomial's integral from 0 to x: (..., N).

        It is exactly zero at x = 0.

        Example:
            >>> round(float(gauss(3).integration(torch.tensor(1.0).double()) @ gauss(3).nodes**2), 9)
            0.333333333
        """
        return _integrals(x, self.projection.to(x.device))


def _integrals(x: Tensor, projection: Tensor) -> Tensor:
    """The integral of P_k from 0 to x is (P_{k+1}(x) - P_{k-1}(x)) / (2 (2 k + 1))."""
    count = len(projection)
    p = legendre(x, count)
    double = 2 * (2 * torch.arange(1, count, dtype=x.dtype, device=x.device) + 1)
    rest = (p[..., 2:] - p[..., :-2]) / double
    return torch.cat((x.unsqueeze(-1), rest), dim=-1) @ projection


@lru_cache
@torch.inference_mode(False)  # a training may use what is kept
def gauss(count: int, device: torch.device | None = None, dtype: torch.dtype = torch.float64) -> Rule:
    """The rule of so many nodes, by the eigenvalues of the Jacobi matrix.

    Source: Golub and Welsch, "Calculation of Gauss quadrature rules" (1969).

    Args:
        count: Number of nodes N, at least 1.
        device, dtype: Where the rule is kept, and how it is rounded.

    Returns:
        The rule, exact for polynomials of degree 2 N - 1.

    Example:
        >>> gauss(2).weights
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    k = torch.arange(1, count, dtype=torch.float64)
    side = k / (4 * k**2 - 1).sqrt()
    eigenvalues, vectors = torch.linalg.eigh(torch.diag(side, 1) + torch.diag(side, -1))
    nodes, weights = (eigenvalues + 1) / 2, vectors[0] ** 2
    norms = 2 * torch.arange(count, dtype=torch.float64) + 1
    projection = (legendre(nodes, count - 1) * weights.unsqueeze(1)).T * norms.unsqueeze(1)
    rule = (nodes, weights, projection, _integrals(nodes, projection))
    return Rule(*(tensor.to(device, dtype) for tensor in rule))
