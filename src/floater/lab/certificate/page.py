"""The page of a certificate: claims, losses, needles, cost, and what was not measured."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from floater.lab.certificate.certified_model import Method
from floater.lab.certificate.needles import TASKS
from floater.lab.certificate.record import Record
from floater.lab.certificate.summary import PLAIN, Claim, choose, claims, share, short_change, signed
from floater.lab.study import figures
from floater.lab.study.panels import Panel
from floater.lab.study.report import render
from floater.lab.study.tables import EMPTY
from floater.lab.table import Cell, Table
from floater.lab.training.files import write_whole

PAGE, TABLES = "certificate.html", "certificate.md"
VERDICTS = {True: "yes", False: "NO", None: "not shown"}
WINDOWED = "unextended, in parts"
"""Label of the unextended model that reads windows of its length."""


def write_page(
    record: Record, measured: Sequence[Method], chosen: str, folder: Path, command: str
) -> list[str]:
    """Write the certificate as a page and as Markdown, and return its answer as lines of text.

    Args:
        record: the results.
        measured: measured methods.
        chosen: method of the extension, or "auto".
        folder: directory of both files.
        command: command that repeats the measurements.
    """
    best, reason = choose(record, measured)
    method = best if chosen == "auto" else measured[0]
    about = claims(record, method) if method is not None else []
    head = f"{record.settings['checkpoint']}, {record.old:,} to {record.length:,} tokens"
    sentences = [f"Chosen by the measurements: {best}: {reason}."]
    if chosen != "auto":
        sentences[0] = f"By these measurements the choice would be {best}: {reason}."
    tables = {
        "Loss by position": losses(record, measured),
        "Needles": needles(record, measured),
        "Short inputs, speed and memory": costs(record, measured),
    }
    values: dict[str, Any] = {
        "title": f"{head}, by {method or 'no method'}",
        "claims": claims_table(about),
        "sentences": sentences,
        "tables": {name: table for name, table in tables.items() if table.rows},
        "figure": figure(record, measured),
        "refused": {str(m): why for m in measured if (why := record.refused(m)) is not None},
        "missing": missing(record),
        "texts": record.settings["texts"],
        "notes": notes(record),
        "command": command,
        "versions": versions(record),
    }
    write_whole(folder / PAGE, render("certificate.html.jinja", values, "floater.lab.certificate"))
    write_whole(folder / TABLES, markdown(values))
    lines = [f"{VERDICTS[claim.holds]:10}{claim.text}: {claim.evidence}" for claim in about]
    return [f"{values['title']}", *lines, *sentences, *missing(record)]


def edges(record: Record) -> list[int]:
    """Return the bounds of the ranges of positions in the table of losses: half the old length each."""
    half = record.old // 2
    return [*range(0, record.length, half), record.length]


def claims_table(about: Sequence[Claim]) -> Table:
    """Return the claims about a method with their verdicts."""
    kinds = {True: "better", False: "worse", None: ""}
    rows = [[Cell(c.text), Cell(VERDICTS[c.holds], kinds[c.holds]), Cell(c.evidence)] for c in about]
    return Table(["claim", "holds", "measured (95 % interval)"], rows)


def losses(record: Record, measured: Sequence[Method]) -> Table:
    """Return the mean loss of each method in each range of positions, in nats per token."""
    ranges = [*itertools.pairwise(edges(record))]

    def row(name: str, method: Method, windows: bool) -> list[Cell]:
        values = [record.loss(method, low, high, windows) for low, high in ranges]
        cells = [Cell(EMPTY if value is None else f"{value:.3f}") for value in values]
        more = None
        if not windows:
            more = record.difference(method, PLAIN, record.old, record.length, windows=True)
        return [Cell(name), *cells, Cell(signed(more))]

    rows = [row(WINDOWED, PLAIN, True), row(str(PLAIN), PLAIN, False)]
    rows += [row(str(method), method, False) for method in record.ranked(measured)]
    rows = [cells for cells in rows if any(cell.text != EMPTY for cell in cells[1:])]
    head = ["method", *(f"{low:,}–{high - 1:,}" for low, high in ranges)]
    return Table([*head, f"from {record.old:,} on, minus parts"], rows)


def needles(record: Record, measured: Sequence[Method]) -> Table:
    """Return the share of the expected answers that each method gives, by task and length."""
    rows = []
    for method, length in ((PLAIN, record.old // 2), *((m, record.length) for m in (PLAIN, *measured))):
        if record.recall(method, length)[1]:
            cells = [Cell(share(*record.recall(method, length, task))) for task in (None, *TASKS)]
            rows.append([Cell(f"{method}, {length:,} tokens"), *cells])
    return Table(["method", "all", *TASKS], rows)


def costs(record: Record, measured: Sequence[Method]) -> Table:
    """Return the change of short inputs, and the time and memory at the new length."""
    rows = []
    for method in (PLAIN, *measured):
        reads = [result for _, result in record.results_of("loss", method) if "short" in result]
        if not reads:
            continue
        answers = [r for kind in ("filler", "text", "words")
                   for _, r in record.results_of(kind, method, record.length)]  # fmt: skip
        change = short_change(record, method) or 0.0
        equal = all(read["short"]["equal"] for read in reads)
        rows.append([
            Cell(str(method)),
            Cell("equal" if equal else f"{change:+.3%}"),
            Cell(f"{np.median([read['seconds'] for read in reads]):.1f}"),
            Cell(f"{1000 * np.median([a['decode'] for a in answers]):.0f}" if answers else EMPTY),
            Cell(f"{max(read['memory'] for read in reads):,}"),
            Cell(f"{answers[0]['cache']:,.0f}" if answers and answers[0]["cache"] else EMPTY),
        ])  # fmt: skip
    head = ["method", "short inputs", "prefill, s", "decode, ms per token", "peak memory, MiB", "cache, MiB"]
    return Table(head, rows)


def figure(record: Record, measured: Sequence[Method]) -> Panel | None:
    """Return the loss by position, a line for each method, averaged over a sixteenth of the length."""
    width = max(1, record.length // record.size // 24)
    series: dict[str, tuple[list[float], list[float]]] = {}
    labelled = [(WINDOWED, PLAIN, True), (str(PLAIN), PLAIN, False)]
    labelled += [(str(m), m, False) for m in record.ranked(measured)[:6]]
    for name, method, windows in labelled:
        x, y = [], []
        for low in range(0, record.length, width * record.size):
            high = min(low + width * record.size, record.length)
            if (loss := record.loss(method, low, high, windows)) is not None:
                x.append((low + high) / 2)
                y.append(loss)
        if x:
            series[name] = x, y
    if not series:
        return None
    with figures.themed():
        drawn = figures.lines(series, "position of the token", "loss (nats/token)", (record.old, "before"))
        drawn.axes[0].set_ylim(*_limits([value for _, y in series.values() for value in y]))
        svg = figures.svg(drawn, "loss-by-position", "Loss by position, a line for each method")
    trials = len(record.common)
    note = f"Means over {trials} text{'s' * (trials != 1)} and {width * record.size} positions; shaded: "
    return Panel("Loss by position", svg, note + "lengths before the extension.", "loss-by-position", drawn)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Return limits that keep failing methods from hiding the differences of the others."""
    low, middle = min(values), float(np.median(values))
    return low - 0.1, min(max(values) + 0.1, middle + 2 * (middle - low) + 0.5)


def notes(record: Record) -> list[str]:
    """Return notes on how the numbers were measured and what they can show."""
    windows = f"windows of {record.old:,} tokens that advance by half of it"
    if record.settings["model"]["kind"] == "masked":
        windows = f"parts of {record.old:,} tokens, with the same masked tokens"
    return [
        f"“{WINDOWED}”: the model as it was, in {windows}; the last column compares the same tokens.",
        f"Intervals of losses are those of a paired t-test over blocks of {record.size} tokens of these "
        "texts: they say nothing about other kinds of text.",
        "Shares of needles have Wilson intervals. Questions on one text are not independent: the "
        "true intervals are wider. Needles are measured for the methods with the least loss.",
        "Speed and memory are those of this machine, with whatever else it did; the memory includes weights.",
    ]


def missing(record: Record) -> list[str]:
    """Return what was not measured."""
    lines = []
    if left := record.settings.get("left"):
        lines.append(f"Not finished: {left} measurements are left; the same command continues.")
    least: dict[str, int] = {}
    lengths: dict[str, set[int]] = {}
    reasons: dict[str, str] = {}
    for key, result in record.results.items():
        kind, _, length, _ = key.split("/")
        if "least" in result:  # which differs with the numbers that are hidden
            least[kind] = max(result["least"], least.get(kind, 0))
            lengths.setdefault(kind, set()).add(int(length))
        elif "refused" in result and kind != "loss":  # one reason of each kind, as texts and needles vary
            reasons.setdefault(kind, result["refused"])
    for kind, tokens in least.items():
        short = " and ".join(f"{length:,}" for length in sorted(lengths[kind]))
        lines.append(f"Not measured: the needles of '{kind}' in {short} tokens; they need {tokens:,}.")
    lines += sorted({f"Not measured: {why}." for why in reasons.values()})
    if record.settings["model"]["kind"] == "masked":
        lines.append(
            "Not measured for a masked model: needles, decoding, and whether a downstream task profits; the "
            "loss of masked tokens depends little on distant text."
        )
    else:
        lines.append(
            "Not measured: instruction following, sampling, batches, and training after the extension."
        )
    return lines


def versions(record: Record) -> Mapping[str, str]:
    """Return the software and the machine, or those of each command, and the minutes of all measurements."""
    rows = []
    for environment in record.settings["environments"]:
        run = environment["software"]
        rows.append(
            {
                "device": f"{environment['device']}, {environment['threads']} threads",
                "python": run["python"],
                "packages": ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
                "commit": str(run["commit"] or "not from a checkout"),
            }
        )
    minutes = sum(result["minutes"] for result in record.results.values())
    several = {name: "; ".join(dict.fromkeys(row[name] for row in rows)) for name in rows[0]}
    return {"minutes": f"{minutes:.0f}", **several}


def markdown(values: Mapping[str, Any]) -> str:
    """Return the certificate as Markdown, without its figure."""
    parts = [f"# {values['title']}", values["claims"].markdown().rstrip(), *values["sentences"]]
    for name, table in values["tables"].items():
        parts += [f"## {name}", table.markdown().rstrip()]
    parts += [f"- {name} was refused: {why}" for name, why in values["refused"].items()]
    parts += ["\n".join(f"- {line}" for line in [*values["notes"], *values["missing"]])]
    parts += [f"    {values['command']}", ", ".join(f"{k}: {v}" for k, v in values["versions"].items())]
    return "\n\n".join(parts) + "\n"
