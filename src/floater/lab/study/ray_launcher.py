"""Run the trials of a study on a Ray cluster whose machines share the study's folder."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from floater.errors import first_line, install
from floater.lab.settings import SettingsError
from floater.lab.study.local_launcher import Started
from floater.lab.study.machine import GIB
from floater.lab.study.settings import Budget
from floater.lab.study.trial_process import TrialProcess
from floater.lab.study.variants import Trial
from floater.lab.training.files import write_whole

PATIENCE = 300.0  # seconds that a cluster may be without a machine for a trial
RETRIES = 3  # of a trial whose worker was killed: it waits until what is left of it has ended, and resumes
LOOK = 10.0  # seconds between checks of the machines of the cluster


class RayLauncher:
    """Launcher of trials as Ray tasks, which Ray schedules within the resources of its machines.

    The cluster is that of the environment variable RAY_ADDRESS, else one that runs on this machine, else a
    new one of this machine within the budget's cores and memory.

    Args:
        budget: the study's budget.
        folder: the study's folder, reachable under this path on every machine.

    Raises:
        SettingsError: if Ray is not installed, or no machine of the cluster is large enough for a trial.
    """

    def __init__(self, budget: Budget, folder: Path) -> None:
        ray = _ray()
        self.ray, self.folder, self.budget = ray, folder.resolve(), budget
        if not ray.is_initialized():
            try:
                ray.init(address="auto", log_to_driver=False)
            except ConnectionError:
                memory = None if budget.memory is None else int(budget.memory * GIB)
                ray.init(num_cpus=budget.cores, _memory=memory, log_to_driver=False, include_dashboard=False)
        self.resources: dict[str, Any] = {
            "num_cpus": budget.trial_cores,
            "memory": int(budget.trial_memory * GIB),
            "max_retries": RETRIES,
        }
        there = ray.cluster_resources()
        wanted = {"CPU": budget.trial_cores, "memory": self.resources["memory"]}
        if there.get("GPU"):
            wanted["GPU"] = self.resources["num_gpus"] = budget.gpus * budget.processes
        self.wanted = wanted
        if not self._has_room():
            raise SettingsError(
                f"no machine of the Ray cluster has {self._room()} for a trial (budget.threads, "
                ".trial_memory, .gpus)"
            )
        self.slots = sys.maxsize  # Ray queues tasks without a free slot
        self.looked = self.had_room = time.monotonic()

    def start(self, trial: Trial) -> Started:
        task = self.ray.remote(**self.resources)(_run)
        reference = task.remote(replace(trial, folder=self.folder), self.budget, os.getcwd())
        return _Task(self.ray, trial, reference, self.check)

    def check(self) -> None:
        """Check periodically that the cluster has a machine for a trial, since Ray would wait forever.

        Raises:
            SettingsError: if the cluster has had none for `PATIENCE` seconds.
        """
        now = time.monotonic()
        if now - self.looked < LOOK:
            return
        self.looked = now
        if self._has_room():
            self.had_room = now
        elif now - self.had_room >= PATIENCE:
            raise SettingsError(
                f"the Ray cluster has lost every machine with {self._room()}; no trial can run: "
                "add one, then run the study again, which resumes"
            )

    def _has_room(self) -> bool:
        living = (node["Resources"] for node in self.ray.nodes() if node["Alive"])
        return any(all(has.get(name, 0) >= least for name, least in self.wanted.items()) for has in living)

    def _room(self) -> str:
        cores, memory, gpus = self.budget.trial_cores, self.budget.trial_memory, self.wanted.get("GPU", 0)
        return f"{cores} cores, {memory} GiB of memory and {gpus} GPUs"


def _ray() -> Any:
    """Import and return Ray, as `Any`: some of its functions have no types."""
    try:
        import ray
    except ImportError as error:
        raise SettingsError(f"launcher is 'ray', which is missing: {install('ray')}") from error
    return ray


class _Task:
    """A trial on a cluster."""

    def __init__(self, ray: Any, trial: Trial, reference: Any, check: Callable[[], None]) -> None:
        self.ray, self.trial, self.reference, self.check = ray, trial, reference, check
        self.ending = False

    def poll(self) -> int | None:
        ready, _ = self.ray.wait([self.reference], timeout=0)
        if not ready:
            if not self.ending:
                self.check()
            return None
        try:
            return int(self.ray.get(self.reference))
        except self.ray.exceptions.RayError as error:
            if not self.ending and not self.trial.error.is_file():
                why = first_line(getattr(error, "cause", None) or error)  # Ray's own begins with its worker
                write_whole(self.trial.error, f"Ray: {why}")
            return 1

    def interrupt(self) -> None:
        self.ending = True
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.cancel(self.reference)

    def stop(self) -> None:
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.cancel(self.reference, force=True)


def _run(trial: Trial, budget: Budget, directory: str) -> int:
    """Run a trial on the machine that Ray chose, in the study's directory."""
    process = TrialProcess(trial, budget, directory=directory)
    try:
        return process.wait()
    except KeyboardInterrupt:  # which Ray raises in a task that is cancelled
        process.end()
        raise
