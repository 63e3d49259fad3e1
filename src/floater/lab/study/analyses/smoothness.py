"""Norm and smoothness of the vectors of positions along the sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from floater.lab.study.analyses.plotting import COLOURS, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Smoothness(NamedTuple):
    """Norms of position vectors, and of their differences.

    Args:
        norm: (positions,), |p_i|.
        step: (positions - 1,), |p_{i+1} - p_i|.
    """

    norm: Tensor
    step: Tensor

    @property
    def roughness(self) -> float:
        """Return the length of a step relative to that between independent vectors.

        The root mean square step over sqrt(2) times the root mean square norm: about 1 for independent
        directions, near 0 for a smooth path.
        """
        return float((self.step.square().mean() / (2 * self.norm.square().mean())).sqrt())


def smoothness(vectors: Tensor) -> Smoothness:
    """Return the norms of vectors, and the distance of each from the next.

    Args:
        vectors: (positions, d), at least two positions.

    Example:
        >>> import torch
        >>> norm, step = smoothness(torch.tensor([[3.0, 4.0], [3.0, 3.0]]))
        >>> norm[0].item(), step.tolist()
        (5.0, [1.0])
    """
    return Smoothness(vectors.norm(dim=1), vectors.diff(dim=0).norm(dim=1))


def smoothness_lines(
    axes: Axes, smoothness: Smoothness, *, trained: int | None = None, title: str = ""
) -> None:
    """Draw norm and step by position, with the end of the trained range if it lies within.

    Args:
        axes: axes to draw on.
        smoothness: result of `smoothness`.
        trained: training length in tokens.
        title: title of the axes.

    Example:
        >>> import torch
        >>> from matplotlib.figure import Figure
        >>> smoothness_lines(Figure().subplots(), smoothness(torch.eye(4)))
    """
    axes.plot(smoothness.norm.numpy(), color=COLOURS[0], label="norm of the vector")
    axes.plot(smoothness.step.numpy(), color=COLOURS[1], linestyle="--", label="distance to the next one")
    mark_trained(axes, trained, len(smoothness.norm))
    axes.set_ylim(bottom=0)
    tidy(axes, title=title, xlabel="position", ylabel="length")
    axes.legend(frameon=False)


def mark_trained(axes: Axes, trained: int | None, shown: int) -> None:
    """Shade the trained range, if positions beyond it are shown as well.

    Args:
        axes: axes with positions along x.
        trained: training length in tokens.
        shown: number of positions that are shown.
    """
    if trained is not None and trained < shown:
        axes.axvspan(0, trained - 1, color="0.93", zorder=0, label="trained range")
