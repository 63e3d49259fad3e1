"""Trials of a study as processes on this machine, and the interface of launchers."""

from __future__ import annotations

import os
from typing import Protocol

import torch

from floater.lab.settings import SettingsError
from floater.lab.study.machine import available_cores, available_memory
from floater.lab.study.settings import Budget
from floater.lab.study.trial_process import TrialProcess
from floater.lab.study.variants import Trial


class Refused(SettingsError):
    """A trial that could not be started: a queue is full, or a setting is wrong.

    Args:
        why: the reason.
        hint: what to do if no other trial runs, whose end could make room.
    """

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(f"{why}; {hint}")
        self.why = why


class Started(Protocol):
    """A trial that was started."""

    def poll(self) -> int | None:
        """Return the trial's exit code, or None while it runs."""
        ...

    def interrupt(self) -> None:
        """Request that the trial writes a checkpoint and ends."""
        ...

    def stop(self) -> None:
        """Stop the trial at once."""
        ...


class Launcher(Protocol):
    """Interface of a launcher of trials.

    Attributes:
        slots: number of trials that may run at a time.
    """

    slots: int

    def start(self, trial: Trial) -> Started:
        """Start a trial.

        Raises:
            Refused: if it cannot be started now; while others run, it is tried again once one has ended.
        """
        ...


class LocalLauncher:
    """Processes on this machine, as many as the budget has cores, memory and GPUs for.

    Args:
        budget: the study's budget.

    Raises:
        SettingsError: if the machine's resources are too small for one trial.
    """

    def __init__(self, budget: Budget) -> None:
        cores = budget.cores or available_cores()
        memory = budget.memory or 0.8 * available_memory()
        self.gpus = _gpus()
        capacities = {"cores": cores // budget.trial_cores, "memory": int(memory / budget.trial_memory)}
        if self.gpus:
            capacities["gpus"] = int(len(self.gpus) // budget.processes * int(1 / budget.gpus))
        scarce = min(capacities, key=lambda name: capacities[name])
        self.slots = capacities[scarce]
        self.budget, self.free = budget, list(range(self.slots))
        if not self.slots:
            raise SettingsError(
                f"budget: {cores} cores, {memory:.1f} GiB and {len(self.gpus)} GPUs have no room for a trial "
                f"of {budget.trial_cores} threads, {budget.trial_memory} GiB, "
                f"{budget.gpus * budget.processes} GPUs: more {scarce}"
            )

    def start(self, trial: Trial) -> Started:
        slot = self.free.pop(0)
        count = self.budget.processes
        first = slot * count % max(1, len(self.gpus) // count * count)
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus[first : first + count])} if self.gpus else {}
        return TrialProcess(trial, self.budget, gpus, ended=lambda: self.free.append(slot))


def _gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(i) for i in range(count)]
