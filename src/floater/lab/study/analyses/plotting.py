"""Elements that the figures of all analyses share: a colour-blind-safe palette, maps, and files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito 2008, "Color Universal Design"; black last
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# from dark to light, so that signs differ in grey prints, too; zero is grey where limits lie around it
MAP, UNKNOWN = "cividis", "white"


@dataclass(frozen=True, eq=False)
class Plot:
    """An analysis of one model, or a drawing.

    Args:
        figure: the figure.
        title: title of the figure.
        text: the most important numbers in words; the caption of a report.
        numbers: all numbers by name.
    """

    figure: Figure
    title: str
    text: str
    numbers: dict[str, Tensor]


def panels(count: int, *, width: float = 7.0, height: float = 4.2) -> tuple[Figure, list[Axes]]:
    """Make a figure with axes in a grid of about as many columns as rows, at most four columns.

    Args:
        count: number of axes.
        width: width in inches of a single axes, or least width of a row of several.
        height: height in inches of a single axes.

    Example:
        >>> figure, axes = panels(6)
        >>> len(axes)
        6
    """
    from matplotlib.figure import Figure

    columns = min(math.ceil(math.sqrt(count)), 4)
    rows = math.ceil(count / columns)
    size = (width, height) if count == 1 else (max(width, 2.6 * columns), 3.0 * rows + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def label_outer(axes: Sequence[Axes]) -> None:
    """Remove the labels of y next to other axes, and those of x above other axes.

    Args:
        axes: axes of a grid whose last row may be shorter than the others.

    Example:
        >>> _, axes = panels(3)
        >>> for each in axes:
        ...     _ = each.set_xlabel("x")
        >>> label_outer(axes)
        >>> [each.get_xlabel() for each in axes]
        ['', 'x', 'x']
    """
    cells = [at.get_subplotspec() for at in axes]
    occupied = {(cell.rowspan.stop, cell.colspan.stop) for cell in cells if cell is not None}
    for at, cell in zip(axes, cells, strict=True):
        if cell is None:
            continue
        row, column = cell.rowspan.stop, cell.colspan.stop
        if (row + 1, column) in occupied:
            at.set_xlabel("")
            at.tick_params(axis="x", labelbottom=False)
        if (row, column - 1) in occupied:
            at.set_ylabel("")
            at.tick_params(axis="y", labelleft=False)


def matrix(
    axes: Axes,
    values: Tensor,
    *,
    limits: tuple[float, float],
    title: str = "",
    bar: bool = True,
    extend: Literal["neither", "both", "min", "max"] = "neither",
    square: bool = False,
) -> Any:
    """Draw a matrix as a heat map, darker for lower values and white for NaN, with whole numbers on its axes.

    Args:
        axes: axes to draw on.
        values: (rows, columns), the first row on top.
        limits: values of the first and the last colour.
        title: title of the axes.
        bar: whether to add a colour bar.
        extend: on which sides values may lie beyond the limits.
        square: whether cells are as wide as high.

    Returns:
        The image, for a bar that several axes share.
    """
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    image = axes.imshow(
        values.detach().float().cpu().numpy(),
        cmap=colormaps[MAP].with_extremes(bad=UNKNOWN),
        vmin=limits[0],
        vmax=limits[1],
        aspect="equal" if square else "auto",
        interpolation="none",
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    axes.set_title(title)
    if bar:
        axes.figure.colorbar(image, ax=axes, extend=extend)
    return image


def tidy(axes: Axes, *, title: str, xlabel: str, ylabel: str) -> None:
    """Label the axes of line plots, and remove lines without information."""
    axes.set_title(title)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(axis="y", color="0.88")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: Path, *, title: str, description: str) -> None:
    """Write a figure, with a title and a description as alternative text.

    Args:
        figure: figure to write.
        path: path of the file, whose suffix selects the format: .png, .svg, .pdf.
        title: title of the figure.
        description: description of its content.

    Raises:
        ValueError: if there is no such format.
    """
    kind = path.suffix.lower()
    title = " - ".join(title.splitlines())
    metadata = {
        ".png": {"Title": title, "Description": description},
        ".svg": {"Title": title, "Description": description},
    }
    figure.savefig(path, dpi=150, metadata=metadata.get(kind, {"Title": title} if kind == ".pdf" else None))
