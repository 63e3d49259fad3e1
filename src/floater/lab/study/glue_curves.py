"""GLUE against the steps of the pre-training, as in Figures 4b and 4c of Ke et al. 2021."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from floater.lab.study import figures
from floater.lab.study.glue_table import Finished, average, best, by_task
from floater.lab.training.run import RESULT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = dict[str, list[tuple[int, float]]]
"""Steps and scores by the name of the pre-training run."""
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def curves(runs: Sequence[Finished]) -> dict[str, Curves]:
    """Return scores by the step of the pre-training after which a model was fine-tuned.

    Args:
        runs: finished GLUE runs; those from a checkpoint RUN/checkpoint-STEP, or from a finished RUN, count.

    Returns:
        "MNLI-m" and "GLUE average", each with the runs of which at least two checkpoints have that score:
        the median over the seeds at the best rate, as in `table`.
    """
    scores: dict[str, Curves] = {"MNLI-m": {}, "GLUE average": {}}
    for path, rates in by_task(runs).items():
        if (start := _pretrained(Path(path))) is None:
            continue
        name, step = start
        values = {"MNLI-m": best(rates["MNLI"])[1][0]} if "MNLI" in rates else {}
        if (mean := average(rates)) is not None:
            values["GLUE average"] = mean
        for what, value in values.items():
            scores[what].setdefault(name, []).append((step, value))
    several = {
        what: {name: sorted(points) for name, points in by_name.items() if len(points) > 1}
        for what, by_name in scores.items()
    }
    return {what: by_name for what, by_name in several.items() if by_name}


def draw(runs: Sequence[Finished]) -> Iterator[tuple[str, Figure]]:
    """Yield the name of each figure's files and the figure, which must be saved while `figures.themed`."""
    for what, by_name in curves(runs).items():
        series = {
            name: ([step / 1000 for step, _ in points], [score for _, score in points])
            for name, points in by_name.items()
        }
        figure = figures.lines(series, "steps of the pre-training, in thousands", what)
        figure.draw_without_rendering()  # its layout, which is kept as the figure is saved
        yield f"steps-{what.replace(' ', '-')}", figure


def _pretrained(path: Path) -> tuple[str, int] | None:
    """Return the name of the run that a model is of, and its step; None if it is of no run."""
    if match := _CHECKPOINT.fullmatch(path.name):
        return path.parent.name, int(match[1])
    try:
        return path.name, int(json.loads((path / RESULT).read_text(encoding="utf-8"))["steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
