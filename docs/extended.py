"""Write the table of operators of extend.md from docs/extend/operators.csv: `make docs`.

The file has the lines of `python benchmarks/extend.py --operators`, at the old and at the new length.
"""

from __future__ import annotations

import csv
from pathlib import Path

from tables import write_parts

HERE = Path(__file__).parent
PAGE, OPERATORS = HERE / "extend.md", HERE / "extend" / "operators.csv"


def operators(path: Path) -> str:
    """Return the operators beyond those of the original, methods with equal numbers in one line."""
    with path.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    groups: dict[tuple[str, ...], list[str]] = {}
    for old, new in zip(lines[::2], lines[1::2], strict=True):
        model, method = old["what"].split(" ", 1)
        key = (model, f"{int(old['original']):,}", old["sequence"], new["sequence"], new["products"])
        groups.setdefault(key, []).append(method)
    table = [
        "| model, method | operators, original | extended, 256 tokens | extended, 1,024 tokens "
        "| products at 1,024, ratio |",
        "|---|---:|---:|---:|---:|",
    ]
    for (model, *cells), methods in groups.items():
        table.append(f"| {model} {'; '.join(methods)} | {' | '.join(cells)} |")
    return "\n".join(table)


def main() -> None:
    """Write the table into the page."""
    write_parts(PAGE, {"operators": operators(OPERATORS)})


if __name__ == "__main__":
    main()
