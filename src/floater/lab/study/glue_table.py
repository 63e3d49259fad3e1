"""Table 3 of Liu et al. 2020, and GLUE by the protocol of Ke et al. 2021, from finished runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from floater.errors import DataError, no_directory
from floater.lab.settings import make, read
from floater.lab.tasks.corpora.glue import TASKS
from floater.lab.tasks.finetuning.settings import Plug
from floater.lab.tasks.glue import GlueSettings
from floater.lab.training.run import MODEL, RESULT, SETTINGS, differences

GROUPS = {
    "Single Sentence": ("CoLA", "SST-2"),
    "Similarity and Paraphrase": ("MRPC", "QQP", "STS-B"),
    "Natural Language Inference": ("MNLI", "QNLI", "RTE"),
}


Rates = dict[float, list[tuple[float, ...]]]
"""Scores of runs by learning rate."""


@dataclass(frozen=True)
class Finished:
    """A finished run: its directory, settings and result, and whether its model has a flow."""

    run: str
    settings: GlueSettings
    result: dict[str, Any]
    plugged: bool = False

    @property
    def row(self) -> str:
        """Return the title of the run's row in the table, which describes its plug."""
        plug = self.settings.plug
        if plug == Plug():
            return "FLOATER (of the checkpoint)" if self.plugged else "baseline"
        plugged = [f"{name}={value}" for name, value in (plug.options or {}).items()]
        plugged += [f"flow={plug.flow}"] if plug.flow else []
        plugged += [f"train={plug.train}"] if plug.train != "all" else []
        return "FLOATER" + (f" ({', '.join(plugged)})" if plugged else "")

    @property
    def record(self) -> dict[str, Any]:
        """Return the record of the run for `floater glue --json`."""
        data, path = self.settings.data, self.settings.model.path
        entry = {"run": str(self.run), "checkpoint": path, "variant": self.row, "task": data.task}
        return entry | {"seed": self.settings.training.seed, "scores": list(self.scores)}

    @property
    def scores(self) -> tuple[float, ...]:
        """Return the score of the task's first metric on each of its validation sets."""
        task = TASKS[self.settings.data.task]
        names = [task.metrics[0], *(f"{task.metrics[0]}_{split}" for split in task.valid[1:])]
        return tuple(float(self.result[name]) for name in names)


def read_run(run: str) -> Finished:
    """Return the settings and the result of a finished GLUE run.

    Raises:
        DataError: if the directory holds no finished run of task `glue`.
        SettingsError: if its settings cannot be read.
    """
    if not Path(run).exists():
        raise no_directory(run)
    if not (Path(run) / SETTINGS).is_file():
        raise DataError(f"{run} holds no run (no {SETTINGS})")
    tree = read(Path(run) / SETTINGS)
    if (task := tree.get("task", "translation")) != "glue":
        raise DataError(f"{run} is a run of task {task!r}, not 'glue'")
    for name in (RESULT, f"{MODEL}/config.json"):  # of a run that is trained for longer, the result is there
        if not (Path(run) / name).is_file():
            raise DataError(f"{run} is not finished (no {name})")
    settings = make(GlueSettings, tree, str(Path(run) / SETTINGS))
    try:
        result, config = (
            json.loads((Path(run) / name).read_text(encoding="utf-8"))
            for name in (RESULT, f"{MODEL}/config.json")
        )
        finished = Finished(run, settings, result, bool(config.get("floater")))
        _ = finished.scores
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{Path(run) / RESULT} is not the result of a GLUE run ({error!r})") from error
    return finished


def read_runs(runs: Sequence[str]) -> list[Finished]:
    """Read finished runs that belong in one table.

    Raises:
        DataError: if one is no finished GLUE run, or the runs are not comparable, as for `table`.
    """
    finished = [read_run(run) for run in runs]
    _check_comparable(finished)
    return finished


def table(runs: Sequence[str]) -> str:
    """Return validation scores in the layout of Liu et al. 2020, Table 3, as a Markdown table.

    The table has a row for each checkpoint and each way it is plugged. A cell has the median over seeds, the
    lowest and the highest score and the number of seeds. Runs of one checkpoint and task may differ in their
    seed, their learning rate and their plug, and in nothing else. Of several learning rates the cell shows
    and names the one with the highest median. The average is over all columns, with both validation sets of
    MNLI, in rows where none is missing. This is the protocol of Ke et al. 2021, section 4.1 and Table 2.

    Args:
        runs: finished run directories.

    Raises:
        DataError: if one is no finished GLUE run, two are the same experiment, or they differ in more.
    """
    finished_runs = read_runs(runs)
    shown = [
        name for name in TASKS if name != "WNLI" or any(f.settings.data.task == name for f in finished_runs)
    ]
    rows = _rows(finished_runs)
    lines = [["Model", *(_group(name) for name in shown), ""]]
    lines += [["", *(_titled(name) for name in shown), "average"]]
    for path in dict.fromkeys(path for path, _ in rows):
        lines.append([f"*{path}*", *[""] * (len(shown) + 1)])
        for (other, title), row in sorted(rows.items(), key=lambda item: item[0][1] != "baseline"):
            if other == path:
                mean = average(row)
                cells = [_cell(row.get(name, {})) for name in shown]
                lines.append([title, *cells, "-" if mean is None else f"{mean:.2f}"])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |"
        for line in lines
    )


def _group(name: str) -> str:
    return next((group for group, names in GROUPS.items() if names[0] == name), "")


def _titled(name: str) -> str:
    task = TASKS[name]
    return f"{name}{'-m/mm' if len(task.valid) > 1 else ''} ({task.metrics[0]})"


def best(rates: Mapping[float, Sequence[tuple[float, ...]]]) -> tuple[float, list[float]]:
    """Return the learning rate with the highest median, and the median of each validation set at it.

    Example:
        >>> best({2e-5: [(60.0,), (61.0,), (90.0,)], 3e-5: [(62.0,), (63.0,), (10.0,)]})
        (3e-05, [62.0])
    """
    medians = {
        rate: [median(column) for column in zip(*scores, strict=True)] for rate, scores in rates.items()
    }
    rate = max(medians, key=lambda rate: sum(medians[rate]))
    return rate, medians[rate]


def _cell(rates: Mapping[float, Sequence[tuple[float, ...]]]) -> str:
    """Return median, range and number of seeds, and the rate if others were tried.

    Example:
        >>> _cell({1e-5: [(63.0,), (61.04,), (64.0,)]}), _cell({1e-5: [(80.0, 81.0)]}), _cell({})
        ('63.0 (61.0-64.0, 3)', '80.0/81.0 (1)', '-')
        >>> _cell({1e-5: [(63.0,)], 2e-5: [(64.0,)]})
        '64.0 (1; 2e-05)'
    """
    if not rates:
        return "-"
    rate, medians = best(rates)
    columns = list(zip(*rates[rate], strict=True))
    count = len(rates[rate])
    spread = "/".join(f"{min(column):.1f}-{max(column):.1f}, " for column in columns) if count > 1 else ""
    named = f"; {rate:g}" if len(rates) > 1 else ""
    return f"{'/'.join(f'{value:.1f}' for value in medians)} ({spread.replace(', /', '/')}{count}{named})"


def average(rates: Mapping[str, Mapping[float, Sequence[tuple[float, ...]]]]) -> float | None:
    """Return the mean of the best medians of all tasks but WNLI; None where one is missing."""
    names = [name for name in TASKS if name != "WNLI"]
    if not all(rates.get(name) for name in names):
        return None
    return fmean(value for name in names for value in best(rates[name])[1])


def by_task(runs: Sequence[Finished]) -> dict[str, dict[str, Rates]]:
    """Return the scores of unplugged runs by checkpoint and task."""
    scores: dict[str, dict[str, Rates]] = {}
    for (path, title), row in _rows(runs).items():
        if title == "baseline":
            scores[path] = row
    return scores


def _rows(runs: Sequence[Finished]) -> dict[tuple[str, str], dict[str, Rates]]:
    """Return the scores of runs by checkpoint and title of the row, and by task."""
    rows: dict[tuple[str, str], dict[str, Rates]] = {}
    for finished in runs:
        settings = finished.settings
        rates = rows.setdefault((settings.model.path, finished.row), {}).setdefault(settings.data.task, {})
        rates.setdefault(settings.training.learning_rate, []).append(finished.scores)
    return rows


def _check_comparable(runs: Sequence[Finished]) -> None:
    """Refuse runs that differ in more than seed, learning rate and plug, or in nothing."""
    first: dict[tuple[str, str], Finished] = {}
    seen: dict[tuple[str, str, str, float, int], str] = {}
    for finished in runs:
        settings = finished.settings
        experiment = settings.model.path, settings.data.task
        other = first.setdefault(experiment, finished)
        different = list(differences(_compared(other.settings), _compared(settings)))
        if different:
            raise DataError(f"{other.run} and {finished.run} cannot be compared: {'; '.join(different)}")
        training = settings.training
        key = (*experiment, finished.row, training.learning_rate, training.seed)
        if key in seen:
            raise DataError(f"{seen[key]} and {finished.run} are the same run: {', '.join(map(str, key))}")
        seen[key] = finished.run


def _compared(settings: GlueSettings) -> GlueSettings:
    return replace(settings, plug=Plug(), training=replace(settings.training, seed=0, learning_rate=1.0))
