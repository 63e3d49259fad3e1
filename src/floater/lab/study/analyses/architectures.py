"""Figures 1 and 5 of Dufter, Schmitt, Schuetze 2022: architectures as boxes, from the input upwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from floater.lab.study.analyses.plotting import Plot, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLOCK = ("input X", "self-attention", "add X, layer norm", "feed-forward", "add, layer norm", "output Z")
_ATTENTION = (
    "input X",
    "Q, K, V = X W(q), X W(k), X W(v)",
    "A = Q Kᵀ / √d",
    "softmax of each row",
    "M = softmax(A) V",
)
_RECURRENT = {
    "Transformer": ("embeddings", "add sinusoids", "blocks"),
    "relative": ("embeddings", "blocks with\nrelative positions"),
    "RNN-Transformer": ("embeddings", "GRU", "blocks"),
    "RR-Transformer": ("embeddings", "GRU", "blocks with\nrelative positions"),
}


def draw_block() -> Plot:
    """Draw a Transformer's block without positions (Figure 1), and its attention."""
    figure, axes = panels(2, width=8.0)
    _boxes(axes[0], "encoder block", _BLOCK)
    _boxes(axes[1], "self-attention", _ATTENTION)
    text = "no box reads an order: a permutation of the rows of X permutes those of Z"
    return Plot(figure, "A Transformer's block without positions", text, {})


def draw_recurrent() -> Plot:
    """Draw where recurrence and relative positions enter a Transformer (Figure 5; Neishi, Yoshinaga 2019)."""
    figure, axes = panels(len(_RECURRENT), width=8.0)
    for each, (title, names) in zip(axes, _RECURRENT.items(), strict=True):
        _boxes(each, title, names)
    text = "encodings `sinusoidal`, `shaw`, `rnn_transformer` and `rr_transformer` of this library"
    return Plot(figure, "Where recurrence tells positions", text, {})


def _boxes(axes: Axes, title: str, names: Sequence[str]) -> None:
    """Draw boxes with names, the first one lowest, and arrows between them."""
    axes.set_title(title)
    axes.set_xlim(-1, 1)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.axis("off")
    box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": "black"}
    for height, name in enumerate(names):
        axes.text(0, height, name, ha="center", va="center", fontsize=9, bbox=box, zorder=2)
        if height:
            arrow = {"arrowstyle": "->", "shrinkA": 12, "shrinkB": 14}
            axes.annotate("", (0, height), (0, height - 1), arrowprops=arrow, zorder=1)
