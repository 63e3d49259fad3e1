"""Similarity of position vectors (Wang and Chen 2020; Dufter et al. 2022, Figure 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from floater.lab.study.analyses.plotting import matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def similarity(vectors: Tensor) -> Tensor:
    """Return the cosine similarity of every pair of vectors.

    Args:
        vectors: (positions, d).

    Returns:
        (positions, positions), from -1 to 1; NaN where a vector is zero and has no direction.

    Example:
        >>> import torch
        >>> similarity(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]))[0].tolist()
        [1.0, 0.0, -1.0]
    """
    wide = vectors.double()
    unit = wide / wide.norm(dim=1, keepdim=True)
    cosines: Tensor = (unit @ unit.T).clamp(-1, 1)
    return cosines.to(vectors.dtype)


def similarity_map(axes: Axes, similarity: Tensor, *, title: str = "") -> None:
    """Draw the cosine similarity of positions; white where a vector is zero.

    Args:
        axes: axes to draw on.
        similarity: (positions, positions).
        title: title of the axes.

    Example:
        >>> import torch
        >>> from matplotlib.figure import Figure
        >>> axes = Figure().subplots()
        >>> similarity_map(axes, similarity(torch.eye(3)), title="learned")
    """
    matrix(axes, similarity, limits=(-1.0, 1.0), title=title, square=True)
    axes.set_xlabel("position")
    axes.set_ylabel("position")
