"""Draw the figures of results, extend, performance and the tutorial compare from numbers: `make docs`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import mean
from textwrap import fill

import themed
from matplotlib.figure import Figure
from tables import read
from themed import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION

DOCS = Path(__file__).parents[1]
EXTENDED = {
    "linear": (BLUE, "-"),
    "ntk": (GREEN, "-"),
    "dynamic": (SKY, "--"),
    "llama3": (PURPLE, "-"),
    "yarn": (VERMILION, "-"),
    "self_extend": (BLACK, "-"),
    "self_extend + log_n": (BLACK, ":"),
    "log_n": (ORANGE, "--"),
    "none": (GREY, "-"),
    "clex from yarn": (SKY, "-"),
    "clex from linear": (ORANGE, "-"),
    "clex slow": (BLACK, "--"),
    "clex declared slow": (BLACK, ":"),
    "trained on long rows": (PURPLE, "--"),
}
"""Colour and line of each method on extend.md."""
LINES = {
    "none": (GREY, ":"),
    "sinusoidal-input": (BLACK, "--"),
    "learned-all": (BLUE, "-."),
    "floater-all": (VERMILION, "-"),
}


def results(columns: int) -> Figure:
    """Return Multi30k at the trained lengths, and beyond them."""
    figure = Figure(figsize=(4.1 * columns, 3.4 * (2 // columns)), layout="constrained")
    left, right = figure.subplots(2 // columns, columns).flat
    rows = [
        row
        for row in read(DOCS / "results" / "multi30k" / "means.csv")
        if (row["test"], row["metric"]) == ("test2016", "bleu")
    ]
    rows.sort(key=lambda row: float(row["mean"]))
    for y, row in enumerate(rows):
        colour = VERMILION if row["variant"].startswith("floater") else BLACK
        left.errorbar(float(row["mean"]), y, xerr=float(row["std"]), fmt="o", color=colour, markersize=4)
    left.set_yticks(range(len(rows)), [shown(row["variant"]) for row in rows], fontsize=8)
    left.set(xlabel="BLEU, test2016", title="Translation within the trained lengths")
    for variant, (colour, line) in LINES.items():
        bins = [
            row
            for row in read(DOCS / "results" / "multi30k_s2l" / "means.csv")
            if (row["variant"], row["metric"]) == (variant, "chrf")
        ]
        names = [f"{row['low']}–{int(row['high']) - 1}" if row["high"] else f"{row['low']}+" for row in bins]
        right.errorbar(
            names,
            [float(row["mean"]) for row in bins],
            yerr=[float(row["std"]) for row in bins],
            label=shown(variant),
            color=colour,
            linestyle=line,
            marker="o",
            markersize=4,
        )
    right.set(
        xlabel="words of the source (trained below 15)", ylabel="chrF", title="Translation of longer captions"
    )
    right.legend(frameon=False, fontsize=8)
    return finish(figure)


def shown(variant: str) -> str:
    """Return the name of a variant as the tables of results.md have it."""
    return variant.replace("-", ", ")


def extend(columns: int) -> Figure:
    """Return the loss of each method by position, less that of the model before its extension."""
    figure = Figure(figsize=(4.1 * columns, 4.6 * (2 // columns)), layout="constrained")
    panels = figure.subplots(2 // columns, columns).flat
    losses = {
        (row["method"], row["trained"], row["seed"], int(row["low"])): (int(row["high"]), float(row["loss"]))
        for row in read(DOCS / "extend" / "curves.csv")
    }
    for panel, trained, title in zip(panels, ("False", "True"), ("without", "with"), strict=True):
        lines: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        for (method, kind, seed, low), (high, loss) in losses.items():
            before = losses["none", "False", seed, low][1]
            lines[method][(low + high) / 2] += [loss - before] * (kind == trained)
        for method, (colour, line) in EXTENDED.items():
            means = [(position, mean(each)) for position, each in lines[method].items() if each]
            if means and (method, trained) != ("none", "False"):
                panel.plot(*zip(*means, strict=True), color=colour, linestyle=line, label=method)
        panel.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
        panel.axvline(256, color=GREY, linewidth=0.8, linestyle=":")
        panel.set(xlabel="tokens read before", ylabel="loss, nats a token, less that of none")
        panel.set_title(f"{title} training")
        panel.legend(frameon=False, fontsize=8, ncols=2, loc="upper left", bbox_to_anchor=(-0.1, -0.16))
    return finish(figure)


def performance(columns: int) -> Figure:
    """Return the ratios of a step with a flow to one without."""
    figure = Figure(figsize=(4.1 * columns, 3.4 if columns > 1 else 4.4), layout="constrained")
    axes = figure.subplots()
    rows = [(name, row) for name in ("steps", "pretrained") for row in read(DOCS / f"performance/{name}.csv")]
    rows.reverse()
    for y, (name, row) in enumerate(rows):
        ratio, low, high = map(float, (row["ratio"], *row["95 % interval"].split(" to ")))
        colour = BLUE if name == "pretrained" else VERMILION
        axes.errorbar(ratio, y, xerr=[[ratio - low], [high - ratio]], fmt="o", color=colour, markersize=4)
    labels = ["BERT-base, " * (name == "pretrained") + row["step"].replace("`", "") for name, row in rows]
    if columns == 1:
        labels = [fill(label, 30) for label in labels]
    axes.set_yticks(range(len(rows)), labels)
    axes.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    axes.set(xlabel="time with / without a flow", title="A step with a flow")
    return finish(figure, 8 if columns > 1 else 7)


def compare(columns: int) -> Figure:
    """Return the loss by position of the models of the tutorial."""
    figure = Figure(figsize=(4.1 * columns, 3.4), layout="constrained")
    axes = figure.subplots()
    rows = list(read(DOCS / "tutorials" / "compare" / "losses.csv"))
    looks = zip((BLACK, BLUE, GREEN, VERMILION), ("--", "-.", (0, (5, 1)), "-"), strict=True)
    for name, (colour, line) in zip(dict.fromkeys(row["encoding"] for row in rows), looks, strict=True):
        points = [(float(row["position"]), float(row["nats"])) for row in rows if row["encoding"] == name]
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=line, label=name)
    axes.axvline(64, color=GREY, linewidth=0.8, linestyle=":")
    axes.set(
        xlabel="position (trained below 64)", ylabel="nats a token", title="Reading beyond the trained length"
    )
    axes.set_ylim(top=3.5)
    axes.legend(frameon=False, fontsize=8, ncols=2 * columns)
    return finish(figure)


def finish(figure: Figure, size: float = 8) -> Figure:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(10)
        axes.tick_params(labelsize=size)
    return figure


def main() -> None:
    """Write the figures, wide and for phones."""
    figures = {"results/opening": results, "performance/opening": performance, "tutorials/compare": compare}
    figures["extend/loss"] = extend
    for name, draw in figures.items():
        for ending, columns in (("", 2), ("-narrow", 1)):
            path = DOCS / f"{name}{ending}.svg"
            path.write_text(themed.svg(draw(columns), name.split("/")[0] + ending), encoding="utf-8")


if __name__ == "__main__":
    main()
