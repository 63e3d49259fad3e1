"""Tables of measurements: printed, and stored in the CSV files from which `make docs` writes the pages."""

from __future__ import annotations

import argparse
import csv
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def add_csv(parser: argparse.ArgumentParser) -> None:
    """Add the option `--csv FOLDER`, which `show` reads."""
    parser.add_argument(
        "--csv", type=folder, metavar="FOLDER", help="of a page's tables, in which these rows are stored"
    )


def folder(text: str) -> Path:
    """Return a folder that exists."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(
            f"{text} is no folder; stored tables are in docs/performance and others"
        )
    return Path(text)


def show(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    folder: Path | None = None,
    name: str = "",
    keys: int = 1,
) -> None:
    """Print rows as a Markdown table while they are measured, and store them in FOLDER/NAME.csv.

    A row replaces the stored one with the same first cells. What is not measured, such as a goal, stays.

    Args:
        columns: names of the columns.
        rows: cells of each row.
        folder: where the table is stored; None only prints it.
        name: name of the stored table.
        keys: number of first columns that identify a row.
    """
    file = None if folder is None else folder / f"{name}.csv"
    stored = [] if file is None else read(file)
    if stored and (missing := set(columns) - set(stored[0])):
        sys.exit(f"{file} has no column {', '.join(sorted(missing))}: store this table in another folder")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    measured = []
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
        measured.append(dict(zip(columns, row, strict=True)))
    if file is not None:
        write(file, merged(stored, measured, columns[:keys]))


def merged(
    stored: Sequence[dict[str, str]], measured: Sequence[dict[str, str]], keys: Sequence[str]
) -> list[dict[str, str]]:
    """Return the stored rows, those that were measured with their new cells, command and commit."""
    rows = {tuple(row[key] for key in keys): row for row in stored}
    origin = {"command": command(), "commit": commit()}
    for row in measured:
        key = tuple(row[key] for key in keys)
        rows[key] = rows.get(key, {}) | row | origin
    return list(rows.values())


def read(file: Path) -> list[dict[str, str]]:
    """Return the rows of a stored table; none if there is no file."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def write(file: Path, rows: Sequence[dict[str, str]]) -> None:
    """Write rows, which may have different columns."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def command() -> str:
    """Return the command of this process, without the folder of the tables."""
    name, *words = sys.argv
    if "--csv" in words:
        at = words.index("--csv")
        del words[at : at + 2]
    words = [word for word in words if not word.startswith("--csv=")]
    return shlex.join(["python", f"benchmarks/{Path(name).name}", *words])


def commit() -> str:
    """Return the commit of this repository, with "+" if its files differ from it."""
    git = ["git", "-C", str(ROOT)]
    run = [
        subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout.strip()
        for words in (
            ("rev-parse", "--short=7", "HEAD"),
            ("status", "--porcelain", "-uno", "src", "benchmarks"),
        )
    ]
    return run[0] + "+" * bool(run[1])


def exponent(value: float, digits: int = 0) -> str:
    """Return a small number as 2e-7.

    >>> exponent(2.2e-7), exponent(2.2e-12, 1)
    ('2e-7', '2.2e-12')
    """
    return f"{value:.{digits}e}".replace("e-0", "e-")
