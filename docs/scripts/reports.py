"""Write the reports of results/ from the numbers stored there: `python docs/scripts/reports.py [NAME...]`.

results/NAME/ has the study's configuration as it ran, its scores, costs, comparisons and curves as CSV, and
its position vectors and logits in `positions.npz`, in 256 levels between the limits in `report.json`. They
were read from the reports that the studies wrote: scores have the digits that these show, curves are exact
to a tenth of a point of the figure, and p values below 0.0001 are 0. Position parameters are counted as
today: without entries of tables that a causal stack never reads. The layout is today's.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tables
import torch
from torch import Tensor

from floater.lab.settings import load
from floater.lab.study import figures, grid, panels, report
from floater.lab.study.analyses import Plot, Smoothness, head_maps, heat_map, similarity_map, smoothness_lines
from floater.lab.study.analyses.plotting import panels as axes_of
from floater.lab.study.column import Column
from floater.lab.study.results import Comparison, Difference, Outcome, Results, Value
from floater.lab.study.settings import StudySettings
from floater.lab.study.variants import Trial, Variant
from floater.lab.tasks import registry
from floater.lab.tasks.measurement import Measurement

RESULTS = Path(__file__).parents[1] / "results"
COSTS = ("tokens_per_second", "memory_mib", "position_parameters", "parameters")
TITLES = {
    "vectors": "position vectors",
    "similarity": "cosine similarity of positions",
    "smoothness": "norm and smoothness",
    "attention": "attention by position alone",
}


@dataclass(frozen=True)
class StoredValue(Value):
    """A mean and a standard deviation over seeds, as they were published."""

    published: tuple[float, float | None] = (0.0, None)

    @property
    def mean(self) -> float:
        return self.published[0]

    @property
    def spread(self) -> float | None:
        return self.published[1]


@dataclass(frozen=True)
class StoredOutcome(Outcome):
    """A trial with its published scores."""

    scores: Mapping[Column, float] = field(default_factory=dict)
    examples: Mapping[Column, int] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float | None:
        return self.cost["tokens_per_second"]

    def score(self, column: Column) -> float | None:
        return self.scores.get(column)

    def count(self, column: Column) -> int | None:
        return self.examples.get(column)


@dataclass(frozen=True)
class StoredResults(Results):
    """Published results of a study; nothing is computed again that needs more digits than were published."""

    means: Mapping[tuple[str, Column], tuple[StoredValue, bool]] = field(default_factory=dict)
    stored: Mapping[str, Any] = field(default_factory=dict)
    compared_then: list[Comparison] = field(default_factory=list)

    @property
    def lengths(self) -> str:
        return self.stored["lengths"]

    @property
    def samples(self) -> int:  # type: ignore[override]
        return self.stored["samples"]

    @property
    def selects(self) -> bool:
        return not self.settings.settings["training"]["average"]

    @cached_property
    def metrics(self) -> dict[str, list[str]]:
        metrics: dict[str, list[str]] = defaultdict(list)
        for _, column in self.means:
            if column.metric not in metrics[column.test]:
                metrics[column.test].append(column.metric)
        return metrics

    @property
    def comparisons(self) -> list[Comparison]:  # type: ignore[override]
        return self.compared_then

    def value(self, variant: Variant, column: Column) -> Value | None:
        return self.means.get((variant.name, column), (None,))[0]

    def best(self, column: Column) -> list[Variant]:
        return [v for v in self.grid.variants if self.means.get((v.name, column), (None, False))[1]]

    def comparable(self, variant: Variant, other: Variant, column: Column) -> bool:
        return True


def read(folder: Path) -> StoredResults:
    """Return the stored results of a study."""
    origin = folder / "study.yaml"
    settings = load(StudySettings, origin)
    stored = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    variants = {
        each.name: each for each in grid._variants(settings, registry.task(settings.task), str(origin))
    }
    scores: dict[str, dict[Column, float]] = defaultdict(dict)
    examples: dict[str, dict[Column, int]] = defaultdict(dict)
    for line in tables.read(folder / "scores.csv"):
        trial, column = f"{line['model']}-{line['seed']}", _column(line)
        if line["examples"]:
            examples[trial][column] = int(line["examples"])
        if line["score"]:
            scores[trial][column] = float(line["score"])
    curves = list(tables.read(folder / "curves.csv"))
    chooser = [line["curve"] for line in curves if line["curve"].startswith("eval_")][-1].removeprefix(
        "eval_"
    )
    outcomes: list[Outcome] = []
    for line in tables.read(folder / "costs.csv"):
        variant = variants[line["variant"]]
        trial = Trial(variant, int(line["seed"]), None, Path(settings.folder))
        variant_curves = [each for each in curves if each["variant"] == variant.name]
        before = sum(outcome.trial.variant is variant for outcome in outcomes)
        measured = {
            test: _measurement(variant_curves, test, stored, trial.name, first=not before)
            for test in _tests(settings)
        }
        outcomes.append(
            StoredOutcome(
                trial,
                "finished",
                cost={name: int(line[name]) for name in COSTS},
                result={"minutes": float(line["minutes"]), f"best_valid_{chooser}": None},
                log=_log(variant_curves, before, len(variant.seeds)),
                measured=measured,
                scores=scores[trial.name],
                examples=examples[trial.name],
            )
        )
    trials = [outcome.trial for outcome in outcomes]
    study_grid = grid.Grid(
        Path(settings.folder), [*variants.values()], trials, {test: {} for test in _tests(settings)}
    )
    means = {}
    for line in tables.read(folder / "means.csv"):
        seeds, mean = len(variants[line["variant"]].seeds), float(line["mean"])
        value = StoredValue([mean] * seeds, seeds, (mean, float(line["std"]) if line["std"] else None))
        means[line["variant"], _column(line)] = value, line["best"] == "1"
    compared = [
        Comparison(
            line["model"],
            line["reference"],
            _column(line),
            Difference(float(line["difference"]), _p_value(line["p_examples"]), _p_value(line["p_seeds"])),
            _p_value(line["p_corrected"]),
        )
        for line in tables.read(folder / "comparisons.csv")
    ]
    return StoredResults(settings, study_grid, outcomes, means, stored, compared)


def positions(folder: Path, results: StoredResults) -> Iterator[panels.Section]:
    """Yield the figures of positions, drawn from the stored values."""
    drawn = [variant.name for variant in figures.shown_variants(results)]
    with np.load(folder / "positions.npz") as file:
        arrays = {name: torch.from_numpy(file[name].astype(np.float32)) for name in file}
    for kind, models in results.stored["positions"].items():
        plots = {}
        for name in (name for name in drawn if name in models):
            model, key = models[name], f"{kind}.{name}"
            plot = _lines_of if kind == "smoothness" else _map_of
            figure = plot(kind, arrays, key, model)
            plots[name] = Plot(figure, f"{name}: {TITLES[kind]}", model["caption"], {})
        missing = results.stored["missing"].get(kind)
        yield panels.section(kind, plots, [missing] if missing else [])


def _map_of(kind: str, arrays: Mapping[str, Tensor], key: str, model: Mapping[str, Any]) -> Any:
    levels, limit = arrays[key], model["limit"]
    values = torch.where(levels < 0, torch.nan, (levels + 0.5) / 128 - 1) * limit
    figure, axes = axes_of(len(values) if kind == "attention" else 1)
    if kind == "attention":
        head_maps(figure, axes, values)
    else:
        {"vectors": heat_map, "similarity": similarity_map}[kind](axes[0], values)
        axes[0].images[0].set_clim(-limit, limit)
    return figure


def _lines_of(kind: str, arrays: Mapping[str, Tensor], key: str, model: Mapping[str, Any]) -> Any:
    figure, (axes,) = axes_of(1)
    smoothness_lines(axes, Smoothness(arrays[f"{key}.norm"], arrays[f"{key}.step"]))
    return figure


def _measurement(
    curves: list[dict[str, str]], test: str, stored: Mapping[str, Any], trial: str, *, first: bool
) -> Measurement:
    """Return what a trial measured besides its scores; for the first, losses by position of all seeds."""
    begin = f"{trial}, {test}: "
    notes = [note.removeprefix(begin).rstrip(".") for note in stored["notes"] if note.startswith(begin)]
    ranges = [line for line in curves if line["curve"] == f"position {test}"] if first else []
    nats = np.zeros(max((int(line["last"]) for line in ranges), default=0))
    tokens = np.zeros(len(nats), dtype=np.int64)
    for line in ranges:
        inside = slice(int(line["first"]) - 1, int(line["last"]))
        nats[inside], tokens[inside] = float(line["mean"]), 1
    return Measurement(
        position_nats=nats, position_tokens=tokens, notes=notes, signatures=stored["signatures"]
    )


def _log(curves: list[dict[str, str]], nth: int, seeds: int) -> list[dict[str, Any]]:
    """Return a log whose mean, least and greatest value over the seeds are those of the curves."""
    entries = []
    for line in curves:
        if not line["curve"].startswith("position"):
            low, mean, high = (float(line[name]) for name in ("low", "mean", "high"))
            value = [low, high, seeds * mean - low - high][nth] if seeds > 1 else mean
            entries.append({"step": int(line["first"]), line["curve"]: value})
    return entries


def _tests(settings: StudySettings) -> list[str]:
    return list(settings.tests) or ["lengths"]


def _column(line: Mapping[str, str]) -> Column:
    low, high = (int(line[name]) if line[name] else None for name in ("low", "high"))
    return Column(line["test"], line["metric"], low, high)


def _p_value(text: str) -> float | None:
    return float(text) if text else None


def write(name: str) -> str:
    """Return the report of a stored study as HTML."""
    folder = RESULTS / name
    results = read(folder)
    with figures.themed():
        sections = list(positions(folder, results))
    configuration = (folder / "study.yaml").read_text(encoding="utf-8")
    return report.page(
        results, f"configs/study/{name}.yaml", sections, results.stored["versions"], configuration
    )


def main() -> None:
    """Write the reports of the named studies, or of all."""
    names = sys.argv[1:] or sorted(folder.parent.name for folder in RESULTS.glob("*/report.json"))
    for name in names:
        (RESULTS / f"{name}.html").write_text(write(name), encoding="utf-8")


if __name__ == "__main__":
    main()
