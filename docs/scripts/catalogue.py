"""Write catalogue.md and its figures from the code: `make docs`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

import themed
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image
from tables import read

from floater import catalogue
from floater.encodings import StackSpec, options
from floater.encodings.card import CONTRACT
from floater.lab.cli.listing import LETTERS, PAGE, arguments, columns, stacks, summary, table
from floater.lab.study.analyses.untrained import AXES, DRAWN, pictures

DOCS = Path(__file__).parents[1]
FIGURES = DOCS / "catalogue"
COUNTED = StackSpec(dim=512, heads=8, layers=6, max_length=512)
SIZES = f"at dim {COUNTED.dim}, {COUNTED.heads} heads, {COUNTED.layers} layers, t_max {COUNTED.max_length}"
HEADER = """# Catalogue of position encodings

`make docs` writes this page from the code: injection to kernel and parameters are measured. The properties
are those by which the survey of [Dufter, Schmitt and Schütze (2022)](https://doi.org/10.1162/coli_a_00445)
compares encodings; `floater models --survey` shows its Table 1 with the cells that differ and why, `--topics`
its Table 2. `floater models --format markdown` prints this table, with filters as `--point relative`, and
`floater models NAME` an entry, with `--bibtex` for its papers.

## Find an encoding

"""
TABLE = f"""
## Table

- paper, published: the paper, and the month of its preprint or the year.
- structure, point: the structure of the data, and the reference point of positions.
- injection: APE changes the embeddings that enter a block, MAM the attention matrix.
- learnable: has parameters that learn.
- recurring: acts in every block.
- unbound: serves four times the training length and distinguishes positions (or distances) there. An encoding
  that clips distances is not unbound: it serves any length, but does not distinguish longer distances.
- beyond: what is defined at four times the training length, by one test of every encoding; it does not say
  how good that is. Refused: an error. Alike: positions (or distances) past the training length are not
  distinguished. Untrained: they are, by parameters that texts of the training length do not reach, such as
  rows of a table. Continued: by a formula, or by parameters that such texts train.
- kernel: SDPA is PyTorch's `scaled_dot_product_attention`; "SDPA, bias" the same with an added mask or bias;
  "flex" through FlexAttention on a GPU with `attn_implementation="flex_attention"`; "own" computes the
  attention matrix in plain PyTorch. On a CPU, attention in tiles computes
  biases by distance, products of positions, and the terms of `shaw`, `deberta` and `transformer_xl`, from 256
  or 512 queries on.
- cache: decoding with a cache gives the outputs of the whole text.
- models: released models that use it.
- formula: {LETTERS}; other letters are options.
- parameters: {SIZES}.

"""
KEPT = "\n".join(f"- {key}: {what}." for key, what in CONTRACT.items())
NOTES = f"""

## What all encodings keep

Every encoding keeps the contract of [floater.testing](reference/testing.md) (padding on any side, packed
documents, caches, precisions, copies, saving, compilation, empty texts, errors beyond a bound) except where
its entry states otherwise:

{KEPT}

An entry names the stacks in which the paper has the encoding, and what its models there do: encoder, causal
(a language model), decoder (of an encoder-decoder), cross (cross-attention). Other stacks, "beyond the
paper", are an extension of this library.

Figures show a newly initialised encoding of width {DRAWN.dim} with {DRAWN.heads} heads: what it adds to the
inputs, or the logits of its first block when every token is the same word, less their mean (empty is masked;
one panel if all heads agree). A thumbnail is the first panel, or its first 32 components.

`convolution` and `rnn_transformer` show what one word in the middle changes, `axial` has segments of 8, and
`stick_breaking` shows the weights of attention. Trees and graphs are drawn on a binary tree whose node i has
the children 2i + 1 and 2i + 2.

## Entries
"""


GROUPS = {
    "Absolute, at the input": ("sequence", ("none", "absolute"), ("-", "APE"), ""),
    "Absolute, in attention": ("sequence", ("absolute",), ("MAM", "both"), ""),
    "Relative, with any attention kernel": ("sequence", ("relative",), (), "SDPA"),
    "Relative, by a bias on the logits": ("sequence", ("relative",), (), "SDPA, bias"),
    "Relative, with an attention of their own": ("sequence", ("relative",), (), "own"),
    "Absolute and relative": ("sequence", ("both",), (), ""),
    "Grids": ("grid", (), (), ""),
    "Trees": ("tree", (), (), ""),
    "Graphs": ("graph", (), (), ""),
}
"""Titles, and structure, points, injections and kernel of the encodings of a group; empty is any."""
FILTERS: Mapping[str, tuple[str, ...]] = {
    "structure": ("sequence", "grid", "tree", "graph"),
    "point": ("absolute", "relative", "both", "none"),
    "injection": ("APE", "MAM", "both"),
    "learnable": ("yes", "no"),
    "recurring": ("yes", "no"),
    "unbound": ("yes", "no"),
    "cache": ("yes", "no"),
    "kernel": ("SDPA", "bias", "flex", "own"),
}


def page() -> str:
    """Return the text of catalogue.md."""
    names = list(catalogue())
    entries = {name: columns(name, COUNTED) for name in names}
    rows = table(list(entries.values()), PAGE).markdown().rstrip("\n")
    for name in names:
        rows = rows.replace(f"\n| {name} |", f"\n| [{name}](#{name}) |")
    scores = extrapolation()
    parts = [HEADER, form(len(names)), *(cards(title, entries) for title in GROUPS), TABLE, rows, NOTES]
    return "".join([*parts, *(section(name, scores.get(name, "")) for name in names)])


def form(total: int) -> str:
    """Return the fields that filter the cards and the table; assets/catalogue.js shows and reads them."""
    fields = [
        f"<label>{name} <select name={name}><option value=''>any"
        + "".join(f"<option>{value}" for value in values)
        + "</select></label>"
        for name, values in FILTERS.items()
    ]
    search = (
        "<label>search <input type=search name=q placeholder='rotary, Llama, point:relative, ...'></label>"
    )
    count = f"<output>{total} of {total}</output> <button type=reset>reset</button>"
    return "\n".join(["<form id=filter hidden>", search, *fields, count, "</form>", ""])


def group(entry: Mapping[str, Any]) -> str:
    """Return the title of the group of an encoding."""
    (title,) = (
        title
        for title, (structure, points, injections, kernel) in GROUPS.items()
        if entry["structure"] == structure
        and (not points or entry["point"] in points)
        and (not injections or entry["injection"] in injections)
        and (not kernel or entry["kernel"].removesuffix("; flex") == kernel)
    )
    return title


def cards(title: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a group of encodings: a thumbnail of each with its name, its paper and a sentence."""
    lines = ["", f"### {title}", "", "<div class=cards>"]
    for name, entry in entries.items():
        if group(entry) == title:
            values = {key: _yes(entry[key]) for key in FILTERS}
            data = " ".join(f'data-{key}="{escape(value)}"' for key, value in values.items())
            sentence = re.sub(r"`(.*?)`", r"<code>\1</code>", escape(entry["summary"]))
            words = " ".join((entry["models"], entry["title"], *(f"{k}:{v}" for k, v in values.items())))
            lines += [
                f'<a href="#{name}" {data} data-words="{escape(words)}">'
                f'<img alt="" src="catalogue/small/{name}.png">'
                f"<b>{name}</b> <small>{escape(entry['paper'])}</small> "
                f"<span>{sentence}</span></a>"
            ]
    return "\n".join([*lines, "</div>", ""])


def _yes(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def extrapolation() -> dict[str, str]:
    """Return the scores of the studies of lengths just beyond the trained ones, by encoding."""
    by_encoding: dict[str, dict[str, list[float]]] = {}
    for task in ("copy", "reverse"):
        for row in read(DOCS / "far" / f"generated_{task}.csv"):
            if row["metric"] == "exact" and row["low"] == "17":
                by_encoding.setdefault(row["model"], {}).setdefault(task, []).append(float(row["score"]))
    return {
        name: ", ".join(f"{task} {fmean(scores):.0f}" for task, scores in tasks.items())
        for name, tasks in by_encoding.items()
    }


def section(name: str, scores: str) -> str:
    """Return the part of catalogue.md about one encoding, with its scores past the training length."""
    card, told = catalogue()[name].card, dict(arguments(name))
    lines = [
        "",
        f"### {name}",
        "",
        f"{summary(name)} [{card.paper}]({card.link})",
        "",
        f"    {card.equation}",
    ]
    lines += ["", f"![{name}](catalogue/{name}.svg){{ .themed }}", ""]
    lines += [f"*{caption(name)}*", ""]
    lines.append(f"- stacks: {stacks(name)}.")
    lines += [f"- `{key}={value!r}`: {told.get(key, '')}" for key, value in options(name).items()]
    if card.recipe != "transformer":
        lines.append(
            f"- recipe of the Transformer around it: `{card.recipe}`, unless a configuration names one."
        )
    for cell, why in (card.survey.differs if card.survey else {}).items():
        said = getattr(card.survey, cell)
        said = {True: "yes", False: "no"}[said] if isinstance(said, bool) else f"`{said}`"
        lines.append(f"- differs from the survey in {cell} ({said} there): {why}.")
    lines += [f"- does not keep {key}: {why}." for key, why in card.exceptions.items()]
    if card.pair_matrix:
        lines.append(f"- keeps a matrix of all pairs in memory: {card.pair_matrix}.")
    if scores:
        lines.append(
            f"- extrapolates: {scores} (exact match in percent, [how measured](far.md#synthetic-tasks))."
        )
    return "\n".join(lines).rstrip("\n") + "\n"


def caption(name: str) -> str:
    """Return what the figure of an encoding shows."""
    kind, panels = pictures(name, DRAWN)
    number = "each head" if len(panels) > 1 else "all heads alike"
    return {
        "vectors": "What it adds to the inputs, or to the queries, by position and component.",
        "logits": f"Logits of the first block for equal words, less their mean, {number}.",
        "weights": f"Weights of attention in the first block for equal words, less their mean, {number}.",
    }[kind]


def draw(name: str) -> tuple[str, bytes]:
    """Return the figure of an encoding as SVG, a panel for each head or one, and its thumbnail as PNG."""
    kind, shown = pictures(name, DRAWN)
    # zero lies between two colours, of which rounding errors would choose one
    shown = [panel.round(decimals=6) for panel in shown]
    stacked = torch.stack(shown)
    most = max(float(torch.quantile(stacked[stacked.isfinite()].abs(), 0.98)), 1e-4)
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    # 374 pixels wide, which a phone shows as it is
    figure = Figure(figsize=(3.9, 1.6 * rows + 1 if columns > 1 else 3.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    x_label, y_label, value = AXES[kind]
    colours = colormaps["viridis"].resampled(64).with_extremes(bad=(0, 0, 0, 0))
    for head, (values, panel) in enumerate(zip(shown, axes.flat, strict=True)):
        values = values.masked_fill(~values.isfinite(), torch.nan).numpy()
        image = panel.imshow(values, cmap=colours, vmin=-most, vmax=most, interpolation="none")
        if len(shown) > 1:
            panel.set_title(f"head {head + 1}", fontsize=10)
        panel.set_xticks(range(0, values.shape[1], 10 if values.shape[1] <= 32 else 20))
        panel.set_yticks(range(0, len(values), 10))
        panel.tick_params(labelsize=9)
        panel.label_outer(remove_inner_ticks=True)
    for panel in axes[-1]:
        panel.set_xlabel(x_label, fontsize=10)
    for panel in axes[:, 0]:
        panel.set_ylabel(y_label, fontsize=10)
    bar = figure.colorbar(image, ax=axes, location="bottom", aspect=40, pad=0.02)
    bar.set_label(value, fontsize=10)
    bar.ax.tick_params(labelsize=9)
    bar.locator = MaxNLocator(5)
    first = image.to_rgba(shown[0].masked_fill(~shown[0].isfinite(), torch.nan).numpy(), bytes=True)
    return themed.svg(figure, name), themed.png(Image.fromarray(first[:32, :32]))


def main() -> None:
    """Write the page and every figure."""
    (FIGURES / "small").mkdir(parents=True, exist_ok=True)
    for old in [*FIGURES.glob("*.*"), *FIGURES.glob("small/*")]:
        if old.stem not in catalogue():
            old.unlink()
    for name in catalogue():
        figure, thumbnail = draw(name)
        (FIGURES / f"{name}.svg").write_text(figure, encoding="utf-8")
        (FIGURES / "small" / f"{name}.png").write_bytes(thumbnail)
    (DOCS / "catalogue.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
