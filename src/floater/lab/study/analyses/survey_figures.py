"""Figures of Dufter, Schmitt, Schuetze 2022; numbers are those of this library's encodings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from floater.encodings import AttentionContext, StackSpec, build
from floater.encodings.structural.spr import tree_relations
from floater.encodings.untied.reset import Reset
from floater.lab.study.analyses.architectures import draw_block, draw_recurrent
from floater.lab.study.analyses.plotting import COLOURS, Plot, label_outer, matrix, panels, tidy
from floater.lab.study.analyses.similarity import similarity, similarity_map
from floater.lab.study.analyses.untrained import pictures
from floater.positions import Positions
from floater.structures import Structure, graphs, trees

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SENTENCE = ("Bush", "held", "a", "talk", "with", "Sharon")
_HEADS = (1, -1, 3, 1, 3, 4)
_EDGES = ((0, 1), (1, 2), (0, 3), (3, 2), (2, 4))
_BIASES = {
    "dufter_absolute": "absolute: one for each pair",
    "dufter_relative": "relative: one for each distance",
}


def _biases() -> Plot:
    figure, axes = panels(2, width=8.0)
    numbers = {}
    for each, (name, title) in zip(axes, _BIASES.items(), strict=True):
        model = build(name, dim=8, heads=1, layers=1, max_length=6)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        state, zeros = model.prepare(Positions.arange(6)), torch.zeros(1, 1, 6, 8)
        bias = model.bias(zeros, zeros, AttentionContext(state, 0))
        assert bias is not None
        numbers[name] = bias.detach().reshape(6, 6)
        _annotated(each, numbers[name], title, form=".1f")
    text = (
        "biases of the attention matrix, drawn from a normal distribution; relative ones repeat on diagonals"
    )
    return Plot(figure, "Biases of absolute and of relative positions", text, numbers)


def _axial() -> Plot:
    spec = StackSpec(dim=64, heads=8, layers=1, max_length=64)
    _, (vectors,) = pictures("axial", spec)
    figure, (axes,) = panels(1)
    most = float(vectors.abs().max())
    matrix(axes, vectors, limits=(-most, most))
    axes.set_xlabel("component")
    axes.set_ylabel("position")
    text = "half of the components are those of a segment of 8 positions, half those of the place in it"
    return Plot(figure, "Axial position embeddings", text, {"vectors": vectors})


def _untied() -> Plot:
    """Untie the first token from five patterns that TUPE's heads learn."""
    length = 32
    at = torch.arange(length)
    delta = (at - at[:, None]).double()  # key - query
    patterns = {
        "none": torch.zeros_like(delta),
        "local": 1 - delta.abs() / 4,
        "distant": delta.abs() / 8 - 1,
        "left": -delta / 8,
        "right": delta / 8,
    }
    reset = Reset.at(Positions.arange(length), "first")
    assert reset is not None
    thetas = torch.tensor([[2.0], [-2.0]], dtype=torch.float64)
    numbers = {}
    figure, axes = panels(len(patterns))
    for each, (name, values) in zip(axes, patterns.items(), strict=True):
        numbers[name] = reset(values.clamp(-2, 2)[None, None], thetas)[0, 0]
        matrix(each, numbers[name], limits=(-2, 2), title=name, bar=False, square=True)
        each.set_xlabel("key")
        each.set_ylabel("query")
    label_outer(axes)
    text = "patterns by hand, from which the first token, [CLS], is untied as a query (row) and as a key "
    text += "(column); those of a trained model: floater plot RUN attention"
    return Plot(figure, "Biases from which [CLS] is untied", text, numbers)


def _dot_products() -> Plot:
    dim, reach = 128, 50
    _, (vectors,) = pictures("sinusoidal", StackSpec(dim=dim, heads=8, layers=1, max_length=2 * reach + 1))
    vectors = vectors.double()
    lines = {"without projections": vectors @ vectors[reach]}
    for number in (1, 2):
        query, key = torch.randn(2, dim, dim, dtype=torch.float64) * dim**-0.5
        lines[f"random projections {number}"] = (vectors @ key) @ (vectors[reach] @ query)
    figure, (axes,) = panels(1)
    offsets = torch.arange(-reach, reach + 1)
    for (label, values), colour, style in zip(lines.items(), COLOURS, ("-", "--", ":"), strict=False):
        axes.plot(offsets, values, label=label, color=colour, linestyle=style)
    tidy(axes, title="", xlabel="relative distance k", ylabel="dot product of positions t and t + k")
    axes.legend(frameon=False)
    even = float((lines["without projections"] - lines["without projections"].flip(0)).abs().max())
    text = f"{dim} components; without projections k and -k differ by at most {even:.1e}, with them by "
    text += ", ".join(f"{(v - v.flip(0)).abs().max():.2g}" for v in list(lines.values())[1:])
    return Plot(figure, "Dot products of sinusoids", text, {"offsets": offsets, **lines})


def _tree() -> Plot:
    structure = trees([list(_HEADS)])
    order = torch.arange(len(_HEADS))
    relations = {"in the sentence": order[:, None] - order, "in the tree": tree_relations(structure)[0]}
    figure, axes = panels(2, width=8.0)
    for each, (title, values) in zip(axes, relations.items(), strict=True):
        _annotated(each, values, title, _SENTENCE)
    depths = ", ".join(
        f"{word} {depth}" for word, depth in zip(_SENTENCE, structure.depth[0].tolist(), strict=True)
    )
    text = f"absolute positions in the tree: {depths}"
    return Plot(figure, "Relative positions of words", text, {"tree": relations["in the tree"]})


def _graph() -> Plot:
    relations = _signed(graphs([list(_EDGES)]))[0]
    figure, (axes,) = panels(1, width=5.0, height=4.2)
    names = [f"node {node}" for node in range(len(relations))]
    _annotated(axes, relations, "", names)
    edges = ", ".join(f"{start} to {end}" for start, end in _EDGES)
    text = f"signed lengths of shortest paths from row to column; ∞ without a path; edges: {edges}"
    return Plot(figure, "Relative positions in a graph", text, {"graph": relations})


def _similarity() -> Plot:
    _, (vectors,) = pictures("sinusoidal", StackSpec(dim=768, heads=12, layers=1, max_length=512))
    cosines = similarity(vectors)
    figure, (axes,) = panels(1, width=5.6, height=4.8)
    similarity_map(axes, cosines)
    text = "768 components at 512 positions; mean cosine at distance " + ", ".join(
        f"{gap}: {cosines.diagonal(gap).mean():.3f}" for gap in (1, 4, 16, 64, 256)
    )
    return Plot(figure, "Cosine similarity of sinusoids", text, {"similarity": cosines})


_DRAW: Mapping[str, Callable[[], Plot]] = {
    "block": draw_block,
    "biases": _biases,
    "axial": _axial,
    "untied": _untied,
    "recurrent": draw_recurrent,
    "dot_products": _dot_products,
    "tree": _tree,
    "graph": _graph,
    "similarity": _similarity,
}


def draw_survey(name: str) -> Plot:
    """Draw a figure of the survey.

    Args:
        name: a key of `floater.lab.study.plots.FIGURES`.

    Example:
        >>> draw_survey("graph").numbers["graph"].tolist()[0]
        [0.0, 1.0, 2.0, 1.0, 3.0]
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _DRAW[name]()


def _signed(structure: Structure) -> Tensor:
    """Return the signed lengths of shortest paths (equation 31), infinite where there is none."""
    there = structure.between(structure.distance)
    back = there.transpose(1, 2)
    backward = (back >= 0) & ((there < 0) | (back < there))
    length = torch.where(backward, -back, there).double()
    return length.masked_fill((there < 0) & (back < 0), torch.inf)


def _annotated(
    axes: Axes, values: Tensor, title: str, names: Sequence[str] = (), *, form: str = ".0f"
) -> None:
    """Draw a small matrix with its numbers."""
    shown = values.double()
    finite = shown.masked_fill(~shown.isfinite(), torch.nan)
    most = float(finite.nan_to_num().abs().max()) or 1.0
    matrix(axes, finite, limits=(-most, most), title=title, bar=False, square=True)
    for (row, column), value in zip(
        torch.cartesian_prod(*map(torch.arange, shown.shape)), shown.flatten(), strict=True
    ):
        dark = float(value) < 0.2 * most
        text = format(float(value), form) if value.isfinite() else "∞"
        colour = "white" if dark else "black"
        axes.text(int(column), int(row), text, ha="center", va="center", color=colour, fontsize=9)
    labels = list(names) or [str(number) for number in range(len(shown))]
    axes.set_xticks(range(len(shown)), labels, rotation=45 if names else 0)
    axes.set_yticks(range(len(shown)), labels)
