"""Write the tables of the pages from stored scores, or check scores and pages: `make docs`.

`python docs/scripts/pages.py --check` writes nothing. It computes every score again from the examples,
where a study's `examples.npz` is kept beside its scores, and compares the pages with what follows from
the scores: the tables, with the p values of the registered tests, and the numbers of the running text
that docs/statements.csv lists. It prints what disagrees. It does not cover scores without examples,
figures, and tables that these scripts do not write.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from math import isclose
from pathlib import Path

import certified
import clock
import copying
import event_times
import far
import few_data
import fullsize
import length_generalisation
import nine_problems
import protocol
import statements
import tables

from floater.lab.study.per_example import read_examples

DOCS = Path(__file__).parents[1]
MODULES = (
    *(far, length_generalisation, protocol, few_data, copying, clock, nine_problems, event_times),
    *(certified, fullsize),
)


def written() -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield pages with their tables by name."""
    yield from ((module.PAGE, module.written()) for module in MODULES)
    yield from ((page, of) for page in sorted(DOCS.rglob("*.md")) if (of := tables.parts(page)))


def check(file: Path) -> list[str]:
    """Return the lines of a table of scores that do not follow from the examples beside it."""
    examples, wrong = read_examples(file.with_suffix(".npz")), []
    for row in tables.read(file):
        measurement = examples[row["model"], int(row["seed"]), row["test"]]
        low, high = int(row["low"] or 0), float(row["high"] or "inf")
        within = (measurement.lengths >= low) & (measurement.lengths < high)
        score = measurement.score(row["metric"], within)
        stored = float(row["score"]) if row["score"] else None
        if score != stored and not (score and stored and isclose(score, stored)):
            wrong.append(f"{file.name}: {row} has {score} by its examples")
    return wrong


def check_pages() -> list[str]:
    """Return the tables and the numbers of the text that do not follow from the scores."""
    wrong = [line for row in statements.statements() if (line := statements.wrong(row))]
    for page, of in written():
        text = page.read_text(encoding="utf-8")
        wrong += [f"{page.name}: table {name!r} differs" for name, part in of.items() if part not in text]
    return wrong


def main() -> None:
    """Write the tables, or check scores and pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; print what disagrees")
    if parser.parse_args().check:
        files = [path.with_suffix(".csv") for path in sorted(DOCS.glob("*/*.npz"))]
        sys.exit("\n".join([*(line for file in files for line in check(file)), *check_pages()]) or None)
    for page, of in written():
        tables.write_parts(page, of)


if __name__ == "__main__":
    main()
