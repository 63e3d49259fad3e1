"""Cells of a study as processes on this machine, and what any launcher is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import IO, Protocol

import psutil
import torch

from floater.settings import SettingsError
from floater.study.grid import Cell
from floater.study.settings import Budget
from floater.tasks.run import write_whole

GIB = 2**30


class Started(Protocol):
    """A cell that was started."""

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        ...

    def stop(self) -> None:
        """End it, whatever it does."""
        ...


class Launcher(Protocol):
    """Where cells are started.

    Attributes:
        slots: how many may run at a time.
    """

    slots: int

    def start(self, cell: Cell) -> Started: ...


class LocalLauncher:
    """Processes on this machine, as many as the budget has cores, memory and GPUs for.

    Args:
        budget: of the study.

    Raises:
        SettingsError: if the machine has not what one cell needs.
    """

    def __init__(self, budget: Budget) -> None:
        cores = budget.cores or len(os.sched_getaffinity(0))
        memory = budget.memory or 0.8 * psutil.virtual_memory().total / GIB
        self.gpus = _gpus()
        places = {"cores": cores // budget.threads, "memory": int(memory / budget.cell_memory)}
        if self.gpus:
            places["gpus"] = len(self.gpus) * int(1 / budget.gpus)
        scarce = min(places, key=lambda name: places[name])
        self.slots = places[scarce]
        self.budget, self.free = budget, list(range(self.slots))
        if not self.slots:
            raise SettingsError(
                f"budget: {cores} cores, {memory:.1f} GiB and {len(self.gpus)} GPUs have no room for a cell "
                f"of {budget.threads} threads, {budget.cell_memory} GiB and {budget.gpus} GPUs: more {scarce}"
            )

    def start(self, cell: Cell) -> Started:
        slot = self.free.pop(0)
        environment = own_environment(self.budget.threads)
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        log = cell.log.open("a", encoding="utf-8")
        return _Process(cell, environment, log, self.budget.cell_memory, lambda: self.free.append(slot))


class _Process:
    """A cell in a process; it ends with this one, and when it grows past its memory."""

    def __init__(
        self, cell: Cell, environment: Mapping[str, str], log: IO[str], gib: float, done: Callable[[], None]
    ) -> None:
        self.cell, self.log, self.gib, self.done = cell, log, gib, done
        self.process = subprocess.Popen(
            command(str(cell.folder), cell.name),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=dict(environment),
        )

    def poll(self) -> int | None:
        code = self.process.poll()
        if code is None:
            try:
                used = psutil.Process(self.process.pid).memory_info().rss / GIB
            except psutil.Error:
                return None
            if used > self.gib:
                self.stop()
                write_whole(self.cell.error, f"used {used:.1f} GiB; budget.cell_memory is {self.gib} GiB")
            return None
        if not self.log.closed:
            self.log.close()
            self.done()
            if code < 0 and not self.cell.error.is_file():
                write_whole(self.cell.error, f"ended by signal {-code}; 9 may mean that memory was short")
        return code

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def command(folder: str, name: str) -> list[str]:
    """The process of a cell of the study in a folder."""
    return [sys.executable, "-m", "floater.study.cell", folder, name]


def _gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(i) for i in range(count)]


def own_environment(threads: int) -> dict[str, str]:
    """The environment of a cell: this one, with the cores of the cell."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    quiet = {"TOKENIZERS_PARALLELISM": "false", "TQDM_MININTERVAL": "30"}
    return os.environ | dict.fromkeys(names, str(threads)) | quiet
