"""Error norms, and the reference solution for them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from floater.flow.solve import solve


def reference_solve(field: nn.Module, start: Tensor, times: Tensor) -> Tensor:
    """Solve in float64 by the eighth-order method at a tolerance of 1e-11.

    Args:
        field: A field; a float64 copy of it is solved.
        start: The state at time 0: (rows, dim).
        times: Requested times (length,), strictly increasing, not negative.

    Returns:
        p at the requested times (length, rows, dim), float64, without gradient.

    Example:
        >>> from floater.flow import ZeroField
        >>> reference_solve(ZeroField(), torch.ones(1, 1), torch.tensor([2.0]))
        tensor([[[1.]]], dtype=torch.float64)
    """
    with torch.no_grad():
        return solve(deepcopy(field).double(), start.double(), times, method="dopri8", rtol=1e-11, atol=1e-11)


def flow_error(p: Tensor, reference: Tensor) -> float:
    """Return the error of position vectors: max over rows and times of |p - p_ref| / max(1, |p_ref|).

    Args:
        p: Vectors (..., dim).
        reference: The exact vectors, of the same shape.

    Returns:
        The error, with Euclidean norms over dim.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> flow_error(torch.tensor([[3.0, 4.5]]), torch.tensor([[3.0, 4.0]]))
        0.1
    """
    if p.shape != reference.shape:
        raise ValueError(f"p and reference differ in shape: {tuple(p.shape)}, {tuple(reference.shape)}")
    p, reference = p.detach().double(), reference.detach().double()
    return float(((p - reference).norm(dim=-1) / reference.norm(dim=-1).clamp(min=1)).max())


def gradient_error(gradients: Sequence[Tensor], reference: Sequence[Tensor]) -> float:
    """Return the error of gradients: |g - g_ref| / |g_ref| over all tensors together.

    Args:
        gradients: One gradient per tensor.
        reference: The exact gradients, one per tensor.

    Returns:
        The error, with Euclidean norms over all entries of all tensors.

    Raises:
        ValueError: if the numbers of tensors differ.

    Example:
        >>> gradient_error([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 0.0])])
        2.0
    """
    ours, theirs = (
        torch.cat([g.detach().double().flatten() for g in group]) for group in (gradients, reference)
    )
    if ours.shape != theirs.shape:
        raise ValueError(f"gradients and reference differ in size: {len(ours)}, {len(theirs)}")
    return float((ours - theirs).norm() / theirs.norm())
