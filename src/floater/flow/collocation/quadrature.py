"""Gauss-Legendre quadrature on the unit interval, and an estimate of its truncation error."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from floater.flow.precision import norms

NODES = 8
"""Nodes N of an interval, hence order 16; see "Constants" in docs/design/collocation.md."""


def legendre(x: Tensor, degree: int) -> Tensor:
    """Evaluate the shifted Legendre polynomials P_0, ..., P_degree, orthogonal on [0, 1].

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
class GaussRule:
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
        """Return the matrix (..., N) from values at the nodes to the polynomial through them at points x.

        A degree below N - 1 truncates the polynomial's Legendre series.

        Example:
            >>> rule = gauss_rule(3)
            >>> round(float(rule.evaluation(torch.tensor(2.0).double()) @ rule.nodes**2), 9)
            4.0
        """
        kept = len(self.nodes) if degree is None else degree + 1
        return legendre(x, kept - 1) @ self.projection[:kept].to(x.device)

    def integration(self, x: Tensor) -> Tensor:
        """Return the matrix (..., N) from values at the nodes to the polynomial's integral from 0 to x (...).

        It is exactly zero at x = 0.

        Example:
            >>> rule = gauss_rule(3)
            >>> round(float(rule.integration(torch.tensor(1.0).double()) @ rule.nodes**2), 9)
            0.333333333
        """
        return _integrals(x, self.projection.to(x.device))


def _integrals(x: Tensor, projection: Tensor) -> Tensor:
    # The integral of P_k from 0 to x is (P_{k+1}(x) - P_{k-1}(x)) / (2 (2 k + 1)), and that of P_0 is x.
    count = len(projection)
    p = legendre(x, count)
    double = 2 * (2 * torch.arange(1, count, dtype=x.dtype, device=x.device) + 1)
    rest = (p[..., 2:] - p[..., :-2]) / double
    return torch.cat((x.unsqueeze(-1), rest), dim=-1) @ projection


@lru_cache
@torch.inference_mode(False)  # a cached rule may be used in training next
def gauss_rule(
    count: int, device: torch.device | None = None, dtype: torch.dtype = torch.float64
) -> GaussRule:
    """Compute the rule of N nodes from the eigenvalues of the Jacobi matrix.

    Source: Golub and Welsch, "Calculation of Gauss quadrature rules" (1969).

    Args:
        count: Number of nodes N, at least 1.
        device: Device of the rule's tensors.
        dtype: Dtype of the rule's tensors.

    Returns:
        The rule, exact for polynomials of degree 2 N - 1.

    Example:
        >>> gauss_rule(2).weights
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    k = torch.arange(1, count, dtype=torch.float64, device="cpu")
    side = k / (4 * k**2 - 1).sqrt()
    eigenvalues, vectors = torch.linalg.eigh(torch.diag(side, 1) + torch.diag(side, -1))
    nodes, weights = (eigenvalues + 1) / 2, vectors[0] ** 2
    scale = 2 * torch.arange(count, dtype=torch.float64, device="cpu") + 1  # 1 / |P_k|^2
    projection = (legendre(nodes, count - 1) * weights.unsqueeze(1)).T * scale.unsqueeze(1)
    rule = (nodes, weights, projection, _integrals(nodes, projection))
    return GaussRule(*(tensor.to(device, dtype) for tensor in rule))


def first_unresolved_coefficient(f: Tensor) -> Tensor:
    """Estimate the norm of the first Legendre coefficient that N nodes do not resolve, P_N's.

    The series is taken to decay geometrically, at the rate that its last four coefficients show.

    Args:
        f: Velocities at the nodes (..., N, rows, width).

    Returns:
        The Euclidean norm of the coefficient (..., rows).

    Example:
        >>> x = gauss_rule(NODES).nodes
        >>> bool(first_unresolved_coefficient((0.1 * x).exp().view(-1, 1, 1)) < 1e-13)
        True
    """
    last = gauss_rule(NODES, f.device, f.dtype).projection[-4:]
    z, a, b, c = norms(torch.matmul(last, f.flatten(-2)).view(*f.shape[:-3], 4, *f.shape[-2:])).unbind(-2)
    tiny = torch.finfo(a.dtype).tiny
    # Every other coefficient of an even or odd velocity vanishes: look at the decay over two degrees, too.
    decay = torch.maximum(c / b.clamp(min=tiny), (c / a.clamp(min=tiny)).sqrt())
    # The last one alone may vanish by chance. Half, as the decay of smooth velocities becomes faster.
    decay = torch.maximum(decay, (b / z.clamp(min=tiny)).sqrt() / 2)
    return torch.maximum(b, c) * decay.clamp(max=1.0)


def truncation_error(lengths: Tensor, f: Tensor) -> Tensor:
    """Estimate the largest error of the displacement within each interval.

    It is the integral of the first term that the series lacks, P_N, from 0 to x, which is
    (P_{N+1}(x) - P_{N-1}(x)) / (4 N + 2) and so at most 0.3 h / (2 N + 1) in an interval of length h.

    Args:
        lengths: The intervals' lengths h (n,).
        f: Velocities at their nodes (n, N, rows, width).

    Returns:
        The Euclidean norm of the error (n, rows).
    """
    return 0.3 / (2 * NODES + 1) * lengths.unsqueeze(-1) * first_unresolved_coefficient(f)
