"""The disk that the trials of a study need, before the first of them starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from floater.lab.study.grid import Grid
from floater.lab.study.variants import Trial
from floater.lab.training.needs import Needs, free_for, held, kept_checkpoints, needs_of, size


def disk_of(grid: Grid, trials: Sequence[Trial], slots: int) -> tuple[int, int]:
    """Return the bytes that trials write at most, and the number of trials of unknown size.

    Finished trials keep their model and their checkpoints if the study keeps them. As many trials as run at a
    time have all the checkpoints of a running one.

    Args:
        grid: the study's grid.
        trials: trials that are not finished.
        slots: number of trials that run at a time.
    """
    sizes: dict[str, Needs | None] = {}
    total, unknown, running = 0, 0, list[int]()
    for trial in trials:
        needs = _needs(grid, trial, sizes)
        if needs is None:
            unknown += 1
            continue
        training = trial.settings.training
        kept = kept_checkpoints(training) if grid.keep_checkpoints else len(training.keep_steps)
        final = needs.model * grid.keep_models + kept * needs.checkpoint
        total += final
        running.append(needs.disk - final)
    return total + sum(sorted(running)[-slots:]), unknown


def _needs(grid: Grid, trial: Trial, sizes: dict[str, Needs | None]) -> Needs | None:
    """Return the needs of a trial; those with the same model and training need the same."""
    settings = trial.settings
    parts: list[Any] = [settings.model, settings.data, getattr(settings, "plug", None)]
    training = settings.training
    parts += [training.save_total_limit, training.average_last, training.keep_steps, training.keep_best]
    key = repr(parts)
    if key not in sizes:
        model = None if grid.task is None else grid.task.empty(settings)
        sizes[key] = None if model is None else needs_of(model, training)
    return sizes[key]


def check_disk(grid: Grid, trials: Sequence[Trial], slots: int) -> str:
    """Return a line about the disk that the unfinished trials of a study need, unless there is too little.

    Raises:
        DataError: if the free space does not suffice.
    """
    total, unknown = disk_of(grid, trials, slots)
    held_now = sum(held(trial.run) for trial in trials)
    needed = max(0, total - held_now)
    fewer = "set keep_checkpoints: false" if grid.keep_checkpoints else "give fewer models or seeds"
    what = f"{grid.folder}: {len(trials)} trials will take {size(needed)}"
    free = free_for(needed, grid.folder, what, f"{fewer}, make room, or choose another disk (folder=...)")
    if unknown == len(trials):
        return f"what they will write is unknown before their data are read ({free})"
    less = f", and more for {unknown} trials whose models are unknown before their data are read"
    return f"they will write up to {size(needed)} ({free}){less * bool(unknown)}"
