"""Write the table of clock.md from the scores in docs/clock/: `make docs`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import mean

from far import spread, words
from tables import read, table

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "clock.md"
FILES = "parity.csv", "parity-32-33.csv"
BINS = {0: "3–20", 21: "21–40", 41: "41–80", 81: "81–160"}
"""Numbers of bits by their lower bound in the files."""


def parity(folder: Path) -> str:
    """Return exact matches as means and deviations over the seeds, the best at twice the length first."""
    scores: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    weights: dict[str, int] = {}
    for name in FILES:
        for row in read(folder / name):
            if row["metric"] == "weights":
                weights[row["model"]] = int(row["score"])
            elif row["metric"] == "exact" and row["low"]:
                scores[row["model"]][int(row["low"])].append(float(row["score"]))
    lines = [
        {"variant": words(name)}
        | {title: spread(scores[name][low], 1) for low, title in BINS.items()}
        | {"weights": f"{weights[name]:,}"}
        for name in sorted(scores, key=lambda name: mean(scores[name][21]), reverse=True)
    ]
    return table(lines)


def written() -> dict[str, str]:
    """Return the table of the page by its name."""
    return {"parity": parity(DOCS / "clock")}
