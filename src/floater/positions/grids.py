"""Coordinates of patches on a grid: images, and frames of a video."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def grid_coordinates(
    sizes: Sequence[int], like: Sequence[int] | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Return the coordinates of the patches of a grid, row by row.

    Args:
        sizes: patches along each axis: (h, w), or (t, h, w).
        like: sizes of another grid that covers the same image: the centres of the patches then get their
            coordinates in that grid, clamped to the centres of its outermost patches, as in bilinear
            interpolation of a table. None means integer coordinates from 0.
        device: device of the result.

    Returns:
        (1, patches, axes), integers, with `like` real numbers.

    Raises:
        ValueError: if there is no axis, a size is below 1, or `like` has another number of axes.

    Example:
        >>> grid_coordinates((1, 4), like=(1, 2))[0].tolist()
        [[0.0, 0.0], [0.0, 0.25], [0.0, 0.75], [0.0, 1.0]]
    """
    for name, counts in (("sizes", sizes), ("like", sizes if like is None else like)):
        if not counts or any(isinstance(size, float) or size < 1 for size in counts):
            raise ValueError(
                f"{name} is {tuple(counts)}; it must be whole numbers of patches along each axis, at least 1"
            )
    axes: list[Tensor] = [torch.arange(size, device=device) for size in sizes]
    if like is not None:
        if len(like) != len(sizes):
            raise ValueError(f"like is {tuple(like)}; it must have {len(sizes)} axes as the grid has")
        axes = [
            ((axis + 0.5) * (other / size) - 0.5).clamp(0, other - 1)
            for axis, size, other in zip(axes, sizes, like, strict=True)
        ]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)[None]
