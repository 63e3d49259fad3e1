"""Write the stored certificates of docs/certificate/ as pages, and the figure of docs/certificate.md.

    python docs/scripts/certificates.py [NAME=REPORT ...]

NAME=REPORT first stores the record in a directory that `floater extend --prove` wrote, without the answers
to its questions, which quote the texts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import fill

import themed
from matplotlib import rc_context
from matplotlib.figure import Figure

from floater.lab.certificate.certified_model import CANDIDATES, Method
from floater.lab.certificate.page import PAGE, write_page
from floater.lab.certificate.record import Record
from floater.lab.certificate.summary import PLAIN
from floater.lab.training.files import write_json

FOLDER = Path(__file__).parents[1] / "certificate"
FIGURE = "smollm2"


def store(name: str, report: Path) -> None:
    """Store the record of a report."""
    record = json.loads((report / "certificate.json").read_text(encoding="utf-8"))
    for result in record["results"].values():
        result.pop("answers", None)
    write_json(FOLDER / f"{name}.json", record)


def read(name: str) -> tuple[Record, list[Method]]:
    """Return a stored record, and its methods."""
    record = Record(**json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))
    every = [Method(kind, dict(options)) for pairs in CANDIDATES.values() for kind, options in pairs]
    named = {str(method): method for method in every}
    return record, [named[name] for name in record.settings["methods"]]


def draw(record: Record, measured: list[Method], width: float) -> Figure:
    """Return the loss beyond the old length minus that of windows, of the methods not worse than none."""
    rows = []
    for method in [*record.ranked(measured), PLAIN]:
        change = record.difference(method, PLAIN, record.old, record.length, windows=True)
        if change is not None:
            rows.append((str(method).replace(" ", ", "), change))
    worst = rows[-1][1].value
    rows = [row for row in rows if row[1].value <= worst]
    with rc_context({"font.size": 9}):
        figure = Figure(figsize=(width, 0.32 * len(rows) + 0.7), layout="constrained")
        axes = figure.subplots()
    for y, (_, change) in enumerate(rows):
        axes.plot([change.low, change.high], [y, y], color="#4477aa", linewidth=1.6)
        axes.plot(change.value, y, "o", color="#4477aa", markersize=4.5)
        axes.annotate(
            f"{change.value:+.3f}",
            (1, y),
            xycoords=axes.get_yaxis_transform(),
            va="center",
            fontsize=8,
        )
    axes.axvline(0, color="#000000", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(rows)), [fill(name, round(5 * width)) for name, _ in rows])
    axes.invert_yaxis()
    label = f"loss beyond {record.old:,} tokens minus that of windows of {record.old:,} (nats/token)"
    axes.set_xlabel(fill(label, round(11 * width)))
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.1)
    return figure


def main() -> None:
    """Run the command."""
    for argument in sys.argv[1:]:
        name, _, report = argument.partition("=")
        store(name, Path(report))
    for path in sorted(FOLDER.glob("*.json")):
        record, measured = read(path.stem)
        settings = record.settings
        command = f"floater extend {settings['checkpoint']} {settings['length']} --method auto --prove"
        command = " ".join([command, *settings["texts"], "--report", path.stem])
        write_page(record, measured, "auto", FOLDER, command)
        (FOLDER / PAGE).rename(FOLDER / f"{path.stem}.html")
        (FOLDER / "certificate.md").unlink()
        if path.stem == FIGURE:
            for ending, width in (("", 6), ("-narrow", 4.1)):  # the second for phones
                figure = themed.svg(draw(record, measured, width), "loss" + ending)
                (FOLDER / f"loss{ending}.svg").write_text(figure, encoding="utf-8")


if __name__ == "__main__":
    main()
