"""Compare published scores of length generalisation with those of the study, for far.md: `make docs`.

docs/far/length_generalisation_published.csv has the scores of Huang et al. (2025): of each seed where the
repository has them, else those of a figure, without a seed.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import mean

from far import SCORES, spread
from tables import read
from tables import table as markdown

PAGE = SCORES.with_suffix(".md")
STUDY = SCORES / "length_generalisation.csv"
PUBLISHED = SCORES / "length_generalisation_published.csv"
BINS = {51: "51–100", 101: "101–150"}
TASKS = {
    "copy": "copy of distinct symbols",
    "sort": "sort of distinct symbols",
    "majority": "majority",
    "binary_majority": "majority of bits",
    "interleaved_majority": "majorities of interleaved bits",
    "repeat_copy": "copy of bits",
    "parity": "parity",
    "binary_addition": "binary addition",
    "tomita_4": "Tomita-4",
    "equal_counts": "a^n b^n c^n d^n",
}
POSITIONS = {"offsets": "random offsets", "none": "none"}


def by_bin(file: Path) -> dict[str, dict[int, list[float]]]:
    """Return the exact matches of all seeds by model and the lower bound of the bin."""
    scores: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read(file):
        scores[row["model"]][int(row["low"])].append(float(row["score"]))
    return scores


def between(values: list[float]) -> str:
    """Return a mean and, of several values, the least and the greatest.

    >>> between([99.0, 100.0]), between([99.98, 100.0]), between([85.4])
    ('99.5 (99.0 to 100.0)', '100.0', '85.4')
    """
    least, greatest = f"{min(values):.1f}", f"{max(values):.1f}"
    return f"{mean(values):.1f}" + (f" ({least} to {greatest})" if least != greatest else "")


def table() -> str:
    """Return the published scores, with those of the study where trials have finished."""
    published, scores = by_bin(PUBLISHED), by_bin(STUDY)
    sizes = {row["model"]: row["size"] for row in read(PUBLISHED)}
    lines = []
    for model, of in published.items():
        task, positions = model.split("-")
        line = {"task": TASKS[task], "positions": POSITIONS[positions], "blocks, heads, width": sizes[model]}
        for low, title in BINS.items():
            line[f"{title}, published"] = between(of[low])
            line[f"{title}, here"] = spread(scores[model][low], 1) if model in scores else ""
        lines.append(line | {"seeds": str(len(scores[model][0])) if model in scores else ""})
    return markdown(lines)


def written() -> dict[str, str]:
    """Return the table of the page by its name."""
    return {"length_generalisation": table()}
