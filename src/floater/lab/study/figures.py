"""Figures for a page: SVG that takes its colours from the page's style, light or dark."""

from __future__ import annotations

import contextlib
import html
import io
import itertools
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from floater.lab.study.column import Column
from floater.lab.study.results import Outcome, Results, Value
from floater.lab.study.svg import slim
from floater.lab.study.variants import Variant
from floater.lab.tasks.measurement import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# placeholders for the colour variables of the page's style
_INK, _RULE, _GRID = "#010101", "#020202", "#030303"
_SERIES = [f"#0404{n:02x}" for n in range(1, 9)]
_VARIABLES = {_INK: "--ink", _RULE: "--rule", _GRID: "--grid", "#e0e0e0": "--grid", "#000000": "--ink"}
_VARIABLES |= {colour: f"--series-{n}" for n, colour in enumerate(_SERIES, 1)}
_MARKS = "os^vD<>P"
_LINES: tuple[Any, ...] = (
    "-",
    "--",
    ":",
    "-.",
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (1, 3)),
    (0, (8, 2, 3, 2)),
)
_BUCKETS = 24
_MOST = 8
_WIDE, _TALL = 24, 36  # most characters of the name of a line, and beside an axis
_APART = 0.075  # least distance of two labels, as a fraction of the axes' height
_POSITIONS = ("position_nats", "position_tokens")


@contextlib.contextmanager
def themed() -> Iterator[None]:
    """Draw in the colours of the page, within the context."""
    import matplotlib

    style: dict[Any, Any] = {
        "font.size": 9,
        "svg.fonttype": "none",
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "axes.titlecolor": _INK,
        "axes.titlesize": 10,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "axes.edgecolor": _RULE,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "savefig.facecolor": "none",
        "grid.color": _GRID,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(style):
        yield


def svg(figure: Figure, name: str, description: str) -> str:
    """Return a figure as an SVG element of a page.

    Args:
        figure: the figure, made while `themed`.
        name: name of the figure, unique on the page.
        description: alternative text.
    """
    import matplotlib

    file = io.StringIO()
    with themed(), matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", text)
    for colour, variable in _VARIABLES.items():
        text = re.sub(f"{colour}(?![0-9a-f])", f"var({variable})", text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    label = html.escape(" ".join(description.split()), quote=True)
    return slim(text).replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def save(figure: Figure, path: Path) -> None:
    """Write a figure for a paper as PDF and as SVG, in the light colours of the page.

    Args:
        figure: the figure, made while `themed`; its colours are changed.
        path: path of the files without a suffix.
    """
    import matplotlib

    _recolour(figure)
    figure.set_layout_engine("none")  # that of the page is kept
    style: dict[Any, Any] = {"svg.fonttype": "path", "pdf.fonttype": 42, "svg.hashsalt": path.name}
    with themed(), matplotlib.rc_context(style):
        for suffix in (".pdf", ".svg"):  # without their dates, equal figures are equal files
            undated = {"CreationDate": None} if suffix == ".pdf" else {"Date": None}
            figure.savefig(path.with_suffix(suffix), metadata=undated)


def _recolour(figure: Figure) -> None:
    """Replace the placeholders of the page's colours by its light colours."""
    from matplotlib.colors import to_hex, to_rgb, to_rgba_array

    template = files("floater.lab.study").joinpath("page.html.jinja").read_text(encoding="utf-8")
    light = dict(re.findall(r"(--[\w-]+): (#\w{6})", template[: template.index("@media")]))
    colours = {colour: to_rgb(light[name]) for colour, name in _VARIABLES.items()}
    for axes in figure.axes:  # also of ticks that are made as they are drawn
        axes.tick_params(which="both", colors=colours[_INK], grid_color=colours[_GRID])
    artists = figure.findobj()
    arrows = [arrow for artist in artists if (arrow := getattr(artist, "arrow_patch", None))]
    for artist in [*artists, *arrows]:
        for name in ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor"):
            get, change = (getattr(artist, f"{verb}_{name}", None) for verb in ("get", "set"))
            if get is None or change is None:
                continue
            rows = to_rgba_array(get())
            new = [[*colours.get(to_hex(row), row[:3]), row[3]] for row in rows]
            if not np.array_equal(rows, np.reshape(new, rows.shape)):
                change(new if len(new) > 1 else new[0])


def shown_variants(results: Results) -> list[Variant]:
    """Choose the variants to draw: all, or of many the baseline, the compared ones and the best in rank."""
    variants = results.grid.variants
    if len(variants) <= _MOST:
        return variants
    ranks = np.zeros(len(variants))
    for column in results.columns():
        scores = [
            math.nan if (value := results.value(variant, column)) is None else value.mean
            for variant in variants
        ]
        ordered = np.array(scores) * (-1 if column.greater else 1)
        ranks += [np.sum(ordered < score) if score == score else len(variants) for score in ordered]
    asked = [variant.name for pair in results.asked for variant in pair]
    base = [variant.name for variant in results.references.values()]
    first = [i for i, variant in enumerate(variants) if variant.name in (*base, *asked)]
    chosen = [*first, *(int(i) for i in np.argsort(ranks, kind="stable") if i not in first)][:_MOST]
    return [variants[index] for index in sorted(chosen)]


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    xlabel: str,
    ylabel: str,
    shaded: tuple[float, str] | None = None,
) -> Figure:
    """Draw a line for each name.

    Args:
        series: abscissas and ordinates of each line.
        xlabel: label of the abscissa.
        ylabel: label of the ordinate.
        shaded: end of a shaded range that begins at 0, and its label; None for no such range.
    """
    figure, axes = _panel()
    for index, (name, (x, y)) in enumerate(series.items()):
        look = {"color": _SERIES[index % len(_SERIES)], "linestyle": _LINES[index % len(_LINES)]}
        axes.plot(x, y, linewidth=1.3, label=name, **look)
    if shaded is not None:
        axes.axvspan(0, shaded[0], color=_GRID, alpha=0.5, lw=0, zorder=0)
        axes.annotate(shaded[1], (0, 1), xycoords=("data", "axes fraction"), va="bottom", fontsize=8)
    axes.margins(x=0)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return _finish(figure, axes, xlabel, ylabel, [])


def score_by_length(results: Results, columns: Sequence[Column], less: Variant | None = None) -> Figure:
    """Draw a score in each bin of length, or its difference from a variant: a line for each variant."""
    variants = shown_variants(results)
    (figure, axes), ends = _panel(), list[_End]()
    zeros = [results.value(less, column) if less else Value([0.0], 1) for column in columns]
    for index, variant in enumerate(variants):
        values = [results.value(variant, column) for column in columns]
        points = [
            (x, value, zero)
            for x, (column, value, zero) in enumerate(zip(columns, values, zeros, strict=True))
            if value is not None and zero is not None
            if less is None or results.comparable(variant, less, column)
        ]
        if points:
            axes.errorbar(
                [x + _shift(index, len(variants)) for x, *_ in points],
                [value.mean - zero.mean for _, value, zero in points],
                yerr=None if less else np.hstack([_bar(value, columns[0]) for _, value, _ in points]),
                capsize=2,
                **_look(variants, index),
            )
            x, value, zero = points[-1]
            point = x + _shift(index, len(variants)), value.mean - zero.mean
            ends.append(_End(variant.name, point, _look(variants, index)["color"]))
    cut = results.settings.short_to_long
    if cut.enabled:
        shown = sum(column.high is not None and column.high <= cut.cut for column in columns)
        if shown:
            axes.axvspan(-0.5, shown - 0.5, color=_GRID, alpha=0.5, lw=0, zorder=0)
            axes.annotate(
                "trained lengths", (-0.45, 1), xycoords=("data", "axes fraction"), va="bottom", fontsize=8
            )
    labels = [column.bin_label for column in columns]
    if len(labels) > 4:
        labels = [label.replace("–", "–\n") for label in labels]  # side by side they would overlap
    axes.set_xticks(range(len(columns)), labels)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    score = columns[0].metric_label
    label = textwrap.fill(f"{score} minus that of {shortened([less.name])[0]}", _TALL) if less else score
    return _finish(figure, axes, results.lengths, label, ends)


def loss_by_position(results: Results, test: str) -> Figure:
    """Draw the loss per token by its position in its example, in steps that widen with it."""
    variants = shown_variants(results)
    (figure, axes), ends = _panel(), list[_End]()
    for index, variant in enumerate(variants):
        measurements = [o.measured[test] for o in results.outcomes_of(variant) if test in o.measured]
        measurements = [measured for measured in measurements if measured.position_tokens.sum()]
        if measurements:
            nats, tokens = (_summed([getattr(m, name) for m in measurements]) for name in _POSITIONS)
            positions, losses = _buckets(nats, tokens)
            look = _look(variants, index, marks=False)
            axes.plot(positions, losses, **look)
            ends.append(_End(variant.name, (positions[-1], losses[-1]), look["color"]))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return _finish(figure, axes, "position of the token", "loss (nats/token)", ends)


def learning(results: Results, key: str, label: str) -> Figure:
    """Draw a value of the log against the steps: a line for each variant, its seeds as a band.

    For a variant without a scored seed, running and failed ones are shown.
    """
    variants = shown_variants(results)
    (figure, axes), ends = _panel(), list[_End]()
    for index, variant in enumerate(variants):
        logs = results.outcomes_of(variant) or [
            o for o in results.outcomes if o.trial.variant.name == variant.name
        ]
        series = [curve for o in logs if (curve := _series(o, key))]
        if series:
            # seeds may end or be logged at other steps
            steps = sorted({step for curve in series for step in curve})
            values = [np.interp(steps, [*s], [*s.values()], left=math.nan, right=math.nan) for s in series]
            least, mean, most = (each(values, axis=0) for each in (np.nanmin, np.nanmean, np.nanmax))
            look = _look(variants, index, marks=len(steps) == 1)
            axes.plot(steps, mean, **look)
            ends.append(_End(variant.name, (steps[-1], float(mean[-1])), look["color"]))
            axes.fill_between(steps, least, most, color=look["color"], alpha=0.18, lw=0)
    return _finish(figure, axes, "step", label, ends)


def cost(results: Results, column: Column, key: str, label: str) -> Figure:
    """Draw a score against a cost: a mark for each variant, with the spread of its seeds."""
    variants = shown_variants(results)
    (figure, axes), ends = _panel(), list[_End]()
    for index, variant in enumerate(variants):
        value = results.value(variant, column)
        costs = [amount for o in results.outcomes_of(variant) if (amount := spent(o, key)) is not None]
        if value is not None and costs:
            look = _look(variants, index) | {"linestyle": "none", "markersize": 7}
            middle = float(np.median(costs))
            sides = [[middle - min(costs)], [max(costs) - middle]]
            axes.errorbar(middle, value.mean, _bar(value, column), sides, **look)
            ends.append(_End(variant.name, (middle, value.mean), look["color"]))
    return _finish(figure, axes, label, column.label, ends)


def _bar(value: Value, column: Column) -> Array:
    """Return the lengths below and above a mean, (2, 1), of its standard deviation; a percentage has ends."""
    spread = value.spread or 0.0
    if "(%)" not in column.metric_label:
        return np.array([[spread], [spread]])
    room: Array = np.array([[value.mean], [100 - value.mean]]).clip(min=0)  # a mean may be rounded past 100
    lengths: Array = np.minimum(spread, room)
    return lengths


def spent(outcome: Outcome, key: str) -> float | None:
    """Return a cost of a trial; None if it was not recorded.

    Args:
        outcome: the trial's outcome.
        key: "tokens_per_second", "memory_mib" or "minutes".
    """
    if key == "tokens_per_second":
        return outcome.tokens_per_second
    amount = outcome.result.get(key) if key == "minutes" else outcome.cost.get(key)
    return None if amount is None else float(amount)


def _series(outcome: Outcome, key: str) -> dict[int, float]:
    return {entry["step"]: entry[key] for entry in outcome.log if key in entry}


def _summed(variants: Sequence[Array]) -> Array:
    """Return the sum of arrays of different lengths: a model that refuses long inputs has shorter ones."""
    total = np.zeros(max(map(len, variants)))
    for variant in variants:
        total[: len(variant)] += variant
    return total


def _buckets(nats: Array, tokens: Array) -> tuple[list[float], list[float]]:
    """Return the middles of geometrically growing ranges of positions, and the mean loss in each.

    Ranges without a token are excluded.
    """
    edges = sorted({round(edge) for edge in np.geomspace(1, len(tokens) + 1, _BUCKETS + 1)})
    positions, means = [], []
    for low, high in itertools.pairwise(edges):
        if count := tokens[low - 1 : high - 1].sum():
            positions.append(math.sqrt(low * (high - 1)))
            means.append(float(nats[low - 1 : high - 1].sum() / count))
    return positions, means


def _panel() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.0), layout="constrained")  # a phone shows it without scaling
    return figure, figure.subplots()


def _finish(figure: Figure, axes: Axes, xlabel: str, ylabel: str, ends: Sequence[_End]) -> Figure:
    """Label the axes, and each line at its right end, and return the figure."""
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.get_ylim()  # the limits of what is drawn, on which the transformation below depends
    to_axes = axes.transScale + axes.transLimits
    ordered = sorted(ends, key=lambda end: to_axes.transform(end.point)[1])
    heights = apart([float(to_axes.transform(end.point)[1]) for end in ordered])
    labels = shortened([end.name for end in ordered])
    for end, label, height in zip(ordered, labels, heights, strict=True):
        axes.annotate(
            label,
            end.point,
            (1.05, height),
            textcoords="axes fraction",
            va="center",
            fontsize=8.5,
            color=end.colour,
            fontweight="bold",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": end.colour,
                "lw": 0.6,
                "relpos": (0, 0.5),
                "shrinkA": 1,
                "shrinkB": 3,
            },
        )
    return figure


def shortened(names: Sequence[str], most: int = _WIDE) -> list[str]:
    """Return names without the middle of long ones; all whole, in lines, if two become equal.

    Example:
        >>> shortened(["floater_relative-cross-all-2e-5", "rotary"])
        ['floater_rela…ss-all-2e-5', 'rotary']
        >>> shortened(["floater_relative-lr1e-3-frozen", "floater_relative-lr2e-3-frozen"], 16)
        ['floater_relative\\n-lr1e-3-frozen', 'floater_relative\\n-lr2e-3-frozen']
    """
    left = most // 2
    short = [name if len(name) <= most else f"{name[:left]}…{name[left + 1 - most :]}" for name in names]
    return short if len({*short}) == len({*names}) else [textwrap.fill(name, most) for name in names]


class _End(NamedTuple):
    """End of a line, with the line's name and colour."""

    name: str
    point: tuple[float, float]
    colour: str


def apart(heights: Sequence[float]) -> list[float]:
    """Move heights apart, so that labels there do not overlap, and keep them from 0 to 1 where they fit.

    Args:
        heights: heights in ascending order. Those that are too near are moved up and down around their mean.

    Example:
        >>> [round(height, 4) for height in apart([0.5, 0.5, 1.0, 1.0])]
        [0.4625, 0.5375, 0.925, 1.0]
    """
    groups: list[list[float]] = []  # of heights, less the distances of the labels below
    for i, height in enumerate(heights):
        groups.append([height - i * _APART])
        while len(groups) > 1 and np.mean(groups[-2]) > np.mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    lowest = np.repeat([float(np.mean(group)) for group in groups], [len(group) for group in groups])
    room = 1 - _APART * (len(heights) - 1)
    return [min(max(float(low), 0.0), room) + i * _APART for i, low in enumerate(lowest)]


def _look(variants: Sequence[Variant], index: int, marks: bool = True) -> dict[str, Any]:
    """Return the style of a variant's line.

    The colour is the model's; line and mark differ between variants, also without colour.
    """
    models = list(dict.fromkeys(variant.model for variant in variants))
    mark = {"marker": _MARKS[index % len(_MARKS)], "markersize": 4} if marks else {}
    return {
        "color": _SERIES[models.index(variants[index].model) % len(_SERIES)],
        "linestyle": _LINES[index % len(_LINES)],
        "linewidth": 1.5,
        **mark,
    }


def _shift(index: int, variants: int) -> float:
    """Return the offset of a mark in its bin; marks are side by side, so that error bars stay visible."""
    return 0.3 * (index - (variants - 1) / 2) / max(variants, 1)
