"""Write the stored certificates of docs/certificate/ as pages, and the figure of docs/certificate.md.

    python docs/certificates.py [NAME=REPORT ...]

NAME=REPORT first stores the record in a directory that `floater extend --prove` wrote, without the answers
to its questions, which quote the texts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matplotlib import pyplot

from floater.lab.certificate.page import PAGE, write_page
from floater.lab.certificate.record import Record
from floater.lab.certificate.subject import CANDIDATES, Method
from floater.lab.certificate.summary import PLAIN
from floater.lab.training.files import write_json

FOLDER = Path(__file__).parent / "certificate"
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


def draw(record: Record, measured: list[Method]) -> None:
    """Draw the loss by position, on white."""
    figure, axes = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    for method, windows in (
        (PLAIN, True),
        (PLAIN, False),
        *((m, False) for m in record.ranked(measured)[:4]),
    ):
        width = 4 * record.size
        bounds = [(low, min(low + width, record.length)) for low in range(0, record.length, width)]
        losses = [(sum(pair) / 2, record.loss(method, *pair, windows)) for pair in bounds]
        points = [(x, y) for x, y in losses if y is not None]
        label = "unextended, in windows of 8,192" if windows else str(method)
        if points:
            axes.plot(
                *zip(*points, strict=True), label=label, linewidth=1.3, linestyle="--" if windows else "-"
            )
    axes.axvspan(0, record.old, color="#eeeeee", zorder=0)
    axes.set(xlabel="position of the token", ylabel="loss (nats/token)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(FOLDER / "loss.svg", metadata={"Date": None})


def main() -> None:
    """Run the command."""
    for argument in sys.argv[1:]:
        name, _, report = argument.partition("=")
        store(name, Path(report))
    pyplot.rcParams.update({"svg.hashsalt": "certificate", "svg.fonttype": "none", "font.size": 9})
    for path in sorted(FOLDER.glob("*.json")):
        record, measured = read(path.stem)
        settings = record.settings
        command = f"floater extend {settings['checkpoint']} {settings['length']} --method auto --prove"
        command = " ".join([command, *settings["texts"], "--report", path.stem])
        write_page(record, measured, "auto", FOLDER, command)
        (FOLDER / PAGE).rename(FOLDER / f"{path.stem}.html")
        (FOLDER / "certificate.md").unlink()
        if path.stem == FIGURE:
            draw(record, measured)


if __name__ == "__main__":
    main()
