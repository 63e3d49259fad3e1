"""Write the table of clock.md from the scores in docs/clock/: `make docs`."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean

from far import spread
from tables import write_parts

HERE = Path(__file__).parent
PAGE = HERE / "clock.md"
FILES = "parity.csv", "parity-32-33.csv"
BINS = {0: "3–20", 21: "21–40", 41: "41–80", 81: "81–160"}
"""Numbers of bits by their lower bound in the files."""


def parity(folder: Path) -> str:
    """Return exact matches as means and deviations over the seeds, the best at twice the length first."""
    scores: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    weights: dict[str, int] = {}
    for name in FILES:
        with (folder / name).open(encoding="utf-8") as file:
            for line in csv.DictReader(file):
                if line["metric"] == "weights":
                    weights[line["model"]] = int(line["score"])
                elif line["metric"] == "exact" and line["low"]:
                    scores[line["model"]][int(line["low"])].append(float(line["score"]))
    lines = [f"| variant | {' | '.join(BINS.values())} | weights |", "|---" + "|---:" * (len(BINS) + 1) + "|"]
    for name in sorted(scores, key=lambda name: mean(scores[name][21]), reverse=True):
        cells = [spread(scores[name][low], 1) for low in BINS]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {weights[name]:,} |")
    return "\n".join(lines)


def main() -> None:
    """Write the table into the page."""
    write_parts(PAGE, {"parity": parity(HERE / "clock")})


if __name__ == "__main__":
    main()
