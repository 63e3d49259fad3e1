"""Run the cells of a study side by side, within a budget."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from floater.study.cell import is_finished, is_trained
from floater.study.cell_process import POLL
from floater.study.grid import Cell, Grid
from floater.study.local_launcher import Launcher, LocalLauncher, Started
from floater.study.progress import fraction
from floater.study.settings import Budget
from floater.training.run import write_whole

logger = logging.getLogger(__name__)


def run_cells(grid: Grid, launcher: Launcher, done: Callable[[], None] = lambda: None) -> None:
    """Run the cells that are not finished; one that fails does not keep the others from going on.

    Args:
        grid: of the study; its plan is written.
        launcher: where they run.
        done: called after each.
    """
    finished = {cell.name for cell in grid.cells if is_finished(cell.run, grid.tests)}
    waiting = [cell for cell in grid.cells if cell.name not in finished]
    if finished:
        logger.info("%s of %s cells are finished", len(finished), len(grid.cells))
    ended = set(finished)
    running: dict[str, tuple[Cell, Started]] = {}
    bar = _bar(grid.cells, waiting)
    try:
        while waiting or running:
            for cell in _ready(waiting, ended)[: max(0, launcher.slots - len(running))]:
                waiting.remove(cell)
                if cell.after is not None and not is_trained(cell.run.with_name(cell.after)):
                    write_whole(cell.error, f"starts from {cell.after}, which failed")
                    ended.add(cell.name)
                    logger.info("%s: failed: %s", cell.name, last_error(cell))
                    continue
                cell.error.unlink(missing_ok=True)  # it may end before it can do so itself
                running[cell.name] = cell, launcher.start(cell)
            time.sleep(POLL)
            for name, (cell, started) in list(running.items()):
                code = started.poll()
                if code is None:
                    continue
                del running[name]
                ended.add(name)
                if code and not cell.error.is_file():
                    with suppress(OSError):
                        write_whole(cell.error, last_error(cell))
                how = f"failed: {last_error(cell)}" if code else "finished"
                logger.info("%s: %s (%s of %s cells)", name, how, len(ended), len(grid.cells))
                done()
            _move(bar, grid.cells, ended)
    finally:
        bar.close()
        for _, started in running.values():
            started.stop()


def _ready(waiting: Sequence[Cell], ended: Collection[str]) -> list[Cell]:
    return [cell for cell in waiting if cell.after is None or cell.after in ended]


def last_error(cell: Cell) -> str:
    """The last error of a failed cell."""
    try:
        return cell.error.read_text(encoding="utf-8").strip()
    except OSError:
        return f"it ended without a word; see {cell.log}"


def _bar(cells: Sequence[Cell], waiting: Sequence[Cell]) -> Any:
    """A bar that counts cells, parts of them included, and tells the time left from those of this process."""
    there = sum(1.0 if cell not in waiting else fraction(cell.run) for cell in cells)
    shape = "{l_bar}{bar}| {n:.2f}/{total} cells [{elapsed}, left {remaining}]"
    return tqdm(total=len(cells), initial=there, bar_format=shape, smoothing=0, dynamic_ncols=True)


def _move(bar: Any, cells: Sequence[Cell], ended: Collection[str]) -> None:
    now = sum(1.0 if cell.name in ended else fraction(cell.run) for cell in cells)
    if now > bar.n:
        bar.update(now - bar.n)
    else:
        bar.refresh()


def launcher(kind: str, budget: Budget, folder: Path) -> Launcher:
    """A launcher by its name in the configuration.

    Raises:
        SettingsError: if the budget has no room for a cell, or Ray is not installed.
    """
    if kind == "ray":
        from floater.study.ray_launcher import RayLauncher

        return RayLauncher(budget, folder)
    return LocalLauncher(budget)
