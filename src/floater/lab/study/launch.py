"""Run the trials of a study side by side, within a budget."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from floater.lab.study.grid import Grid
from floater.lab.study.local_launcher import Launcher, LocalLauncher, Refused, Started
from floater.lab.study.needs import check_disk
from floater.lab.study.progress import TimeLeft, fraction
from floater.lab.study.settings import Budget
from floater.lab.study.trial import is_finished, is_trained
from floater.lab.study.trial_process import GRACE, POLL
from floater.lab.study.variants import Trial, last_error
from floater.lab.training.files import write_whole
from floater.lab.training.progress import MINUTE

RETRY = 30.0
"""Seconds from the end of a trial until a refused one is tried: a queue counts a job for a while after it."""
logger = logging.getLogger(__name__)


def run_trials(grid: Grid, launcher: Launcher, *, first: bool = True) -> None:
    """Run the trials that are not finished; one that fails does not stop the others.

    Args:
        grid: the study's grid, whose plan is written.
        launcher: launcher that starts each of them.
        first: False if other trials may just have ended, whose places the launcher still counts.

    Raises:
        Refused: if the launcher refuses a trial while none runs.
    """
    finished = {trial.name for trial in grid.trials if is_finished(trial.run, grid.tests)}
    waiting = [trial for trial in grid.trials if trial.name not in finished]
    total = len(grid.trials) + len(grid.later)
    if finished:
        logger.info("%s of %s trials are finished", len(finished), total)
    if waiting:
        disk = check_disk(grid, [*waiting, *grid.later], launcher.slots)
        count = f"{len(waiting)} trials to run"
        count += f", then {len(grid.later)} with what these choose" * bool(grid.later)
        slots = "all" if launcher.slots == sys.maxsize else launcher.slots
        logger.info("%s, %s at a time; %s; %s", count, slots, plan(grid, launcher), disk)
    ended = set(finished)
    running: dict[str, tuple[Trial, Started]] = {}
    bar = _bar(grid.trials, waiting, total)
    time_left = TimeLeft(total, bar.n, every=MINUTE if bar.disable else math.inf)
    queue = _Queue(is_final=first)
    try:
        while waiting or running:
            ready = [trial for trial in waiting if trial.after is None or trial.after in ended]
            free = launcher.slots - len(running) if queue.is_open() else 0
            for trial in ready[: max(0, free)]:
                waiting.remove(trial)
                if trial.after is not None and not is_trained(trial.run.with_name(trial.after)):
                    write_whole(trial.error, f"starts from {trial.after}, which failed")
                    ended.add(trial.name)
                    logger.info("%s: failed: %s", trial.name, last_error(trial))
                    continue
                trial.error.unlink(missing_ok=True)  # it may end before it can do so itself
                try:
                    running[trial.name] = trial, launcher.start(trial)
                    queue.is_final = False
                except Refused as refusal:
                    queue.refuse(refusal, len(running))
                    waiting.insert(0, trial)
                    break
            time.sleep(POLL)
            for name, (trial, started) in list(running.items()):
                code = started.poll()
                if code is None:
                    continue
                del running[name]
                ended.add(name)
                queue.end()
                if code and not trial.error.is_file():
                    with suppress(OSError):
                        write_whole(trial.error, last_error(trial))
                how = f"failed: {last_error(trial)}" if code else "finished"
                logger.info("%s: %s (%s of %s trials)", name, how, len(ended), total)
            done = sum(1.0 if trial.name in ended else fraction(trial.run) for trial in grid.trials)
            time_left.log(done)
            _move(bar, done)
    finally:
        bar.close()
        _end([*running.values()])


class _Queue:
    """When to start trials with a launcher that refuses one while others run.

    Attributes:
        is_final: whether a refusal while none runs ends the study.
    """

    def __init__(self, *, is_final: bool) -> None:
        self.is_final, self._was_full, self._opens = is_final, False, 0.0

    def is_open(self) -> bool:
        """Return whether trials may be started now."""
        return time.monotonic() >= self._opens

    def refuse(self, refusal: Refused, running: int) -> None:
        """Wait for the end of a trial or, where the last one has just ended, until the queue knows of it."""
        if not running and self.is_final:
            raise refusal
        if not self._was_full:
            hint = "the others start as these end; budget.cores limits how many are started"
            logger.warning("%s; %s of the trials run, %s", refusal.why, running, hint)
        self._opens = math.inf if running else time.monotonic() + RETRY
        self.is_final, self._was_full = not running, True

    def end(self) -> None:
        """Take note of a trial's end, after which one that was refused is tried again."""
        if self._was_full and (self.is_open() or self._opens == math.inf):
            self._opens = time.monotonic() + RETRY


def plan(grid: Grid, launcher: Launcher) -> str:
    """Return the memory that the trials of a study may take, and what they write, for the log."""
    budget, trials = getattr(launcher, "budget", None), grid.trials[0].run.parent
    memory = f"each may take {budget.trial_memory:g} GiB of memory and " if budget else "each "
    return f"{memory}writes checkpoints and a model to {trials}; the report is {trials.parent}/report.html"


def _end(running: Sequence[tuple[Trial, Started]]) -> None:
    """Interrupt trials, which write a checkpoint, and stop those that take too long."""
    for _, started in running:
        started.interrupt()
    latest = time.monotonic() + GRACE
    try:
        while time.monotonic() < latest and any(started.poll() is None for _, started in running):
            time.sleep(POLL)
    finally:
        for trial, started in running:
            started.stop()
            trial.error.unlink(missing_ok=True)  # it did not fail: it resumes with the study


def _bar(trials: Sequence[Trial], waiting: Sequence[Trial], total: int) -> Any:
    """Return a progress bar that counts trials and fractions of them, and estimates the time left."""
    there = sum(1.0 if trial not in waiting else fraction(trial.run) for trial in trials)
    shape = "{l_bar}{bar}| {n:.2f}/{total} trials [{elapsed}, left {remaining}]"
    look = {"bar_format": shape, "smoothing": 0, "dynamic_ncols": True, "disable": None}  # on terminals only
    return tqdm(total=total, initial=there, **look)


def _move(bar: Any, now: float) -> None:
    """Move a progress bar to the present state of the trials; it never goes back."""
    if now > bar.n:
        bar.update(now - bar.n)
    else:
        bar.refresh()


def choose_launcher(kind: str, budget: Budget, folder: Path, slurm: Mapping[str, Any]) -> Launcher:
    """Return a launcher by its name in the configuration.

    Args:
        kind: "local", "ray" or "slurm".
        budget: the study's budget.
        folder: the study's folder.
        slurm: parameters of the jobs on SLURM.

    Raises:
        SettingsError: if the budget has no room for a trial, or Ray, submitit or SLURM is not installed.
    """
    if kind == "ray":
        from floater.lab.study.ray_launcher import RayLauncher

        return RayLauncher(budget, folder)
    if kind == "slurm":
        from floater.lab.study.slurm_launcher import SlurmLauncher

        return SlurmLauncher(budget, folder, slurm)
    return LocalLauncher(budget)
