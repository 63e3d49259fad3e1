"""Run the trials of a study on a Ray cluster whose machines share the study's folder."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from floater.settings import SettingsError
from floater.study.grid import Trial
from floater.study.local_launcher import Started
from floater.study.machine import GIB
from floater.study.settings import Budget
from floater.study.trial_process import TrialProcess


class RayLauncher:
    """Ray tasks, each a trial; Ray keeps to what its machines have.

    The cluster is that of the environment variable RAY_ADDRESS, else one that is found on this machine, else
    a new one of this machine within the budget's cores and memory.

    Args:
        budget: of the study.
        folder: of the study, reachable under this path on every machine.

    Raises:
        SettingsError: if Ray is not installed, or no machine of the cluster has what a trial needs.
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
            "num_cpus": budget.threads,
            "memory": int(budget.trial_memory * GIB),
            "max_retries": 0,
        }
        there = ray.cluster_resources()
        wanted = {"CPU": budget.threads, "memory": self.resources["memory"]}
        if there.get("GPU"):
            wanted["GPU"] = self.resources["num_gpus"] = budget.gpus
        if not any(
            all(node["Resources"].get(name, 0) >= amount for name, amount in wanted.items())
            for node in ray.nodes()
            if node["Alive"]
        ):
            raise SettingsError(
                f"no machine of the Ray cluster has {budget.threads} cores, {budget.trial_memory} GiB of "
                f"memory and {wanted.get('GPU', 0)} GPUs for a trial (budget.threads, .trial_memory, .gpus)"
            )
        self.slots = sys.maxsize  # Ray holds back what has no room yet

    def start(self, trial: Trial) -> Started:
        task = self.ray.remote(**self.resources)(_run)
        return _Task(self.ray, task.remote(replace(trial, folder=self.folder), self.budget, os.getcwd()))


def _ray() -> Any:
    """Return the library, some of whose functions have no types."""
    try:
        import ray
    except ImportError as error:
        raise SettingsError("launcher is 'ray', which is missing: pip install 'floater[ray]'") from error
    return ray


class _Task:
    """A trial on a cluster."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self.ray, self.reference = ray, reference

    def poll(self) -> int | None:
        ready, _ = self.ray.wait([self.reference], timeout=0)
        if not ready:
            return None
        try:
            return int(self.ray.get(self.reference))
        except self.ray.exceptions.RayError:
            return 1

    def interrupt(self) -> None:
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
