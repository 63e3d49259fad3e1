"""Run the trials of a study as SLURM jobs on a cluster whose machines share the study's folder."""

from __future__ import annotations

import io
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from floater.errors import first_line, install, reason
from floater.lab.settings import SettingsError
from floater.lab.study.local_launcher import Refused, Started
from floater.lab.study.settings import Budget
from floater.lab.study.trial_process import TrialProcess
from floater.lab.study.variants import Trial
from floater.lab.training.files import write_whole

JOBS = "slurm"
"""Directory of the jobs' files in the study's folder; each start of the study adds a directory to it."""
_TASKS = ("nodes", "slurm_nodes", "tasks_per_node", "slurm_tasks_per_node", "slurm_ntasks_per_node")
"""Options by which `srun` would start a trial several times."""
_UNREAD = {
    **dict.fromkeys(("name", "slurm_job_name"), "a job has the name of its trial"),
    "slurm_array_parallelism": "each trial is a job; budget.cores limits how many run",
}
"""Options that would change nothing."""
_KINDS: dict[str, tuple[type, str]] = {
    "slurm_setup": (list, "a list of texts"),
    "slurm_teardown": (list, "a list of texts"),
    "slurm_srun_args": (list, "a list of texts"),
    "slurm_additional_parameters": (dict, "a mapping"),
}
"""Types of the options that are not one value, which submitit does not check."""
_LOOK = 5.0  # seconds between two checks of a job's files, which are on a shared disk
_ASK = 60.0  # seconds between two questions to SLURM for the states of all jobs; submitit's are up to 600


class SlurmLauncher:
    """Launcher of trials as SLURM jobs, by submitit.

    A job that reaches its time limit, or is preempted, writes a checkpoint and is queued again. Jobs continue
    when the study is killed; when it is started again, it waits for those that still train.

    Args:
        budget: the study's budget; cores, if it names them, limit the number of jobs at a time.
        folder: the study's folder, reachable under this path on every machine.
        options: parameters of submitit's executor, as slurm_partition, timeout_min and gpus_per_node. Those
            that are None have their defaults.
        cluster: target of submitit; "local" runs the jobs on this machine.

    Raises:
        SettingsError: if submitit or SLURM is not installed, it does not support an option, or an option does
            not go with a trial on one machine and a GPU for each of its processes.
    """

    def __init__(
        self, budget: Budget, folder: Path, options: Mapping[str, Any], cluster: str = "slurm"
    ) -> None:
        submitit = _submitit()
        options = {name: value for name, value in options.items() if value is not None}
        _check(options, budget.processes)
        self.folder, self.budget, self.options = folder.resolve(), budget, options
        chosen = {
            "timeout_min": 24 * 60,
            "cpus_per_task": budget.trial_cores,
            "mem_gb": math.ceil(budget.trial_memory),
            **({"gpus_per_node": budget.processes} if budget.processes > 1 else {}),
            **options,
        }
        # since SLURM 22.05 srun does not take them from the job
        cores = chosen.get("slurm_cpus_per_task", chosen["cpus_per_task"])
        chosen["slurm_srun_args"] = [f"--cpus-per-task={cores}", *chosen.get("slurm_srun_args", ())]
        try:
            jobs = self.folder / JOBS
            jobs.mkdir(parents=True, exist_ok=True)
            # submitit unpickles results: a new directory has none that somebody else wrote
            directory = tempfile.mkdtemp(prefix="jobs-", dir=jobs)
            self.executor = submitit.AutoExecutor(directory, cluster, slurm_max_num_timeout=10**6)
            self.executor.update_parameters(**chosen)
        except (RuntimeError, ValueError, AssertionError, NameError, TypeError) as error:
            raise SettingsError(f"launcher is 'slurm': {first_line(error)}") from error
        self.slots = sys.maxsize if budget.cores is None else budget.cores // budget.trial_cores

    def start(self, trial: Trial) -> Started:
        """Submit the job of a trial.

        Raises:
            Refused: if sbatch refuses it; the message has the reason, and the options that it names.
        """
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        self.executor.update_parameters(name=trial.name)
        work = _Work(replace(trial, folder=self.folder), self.budget, os.getcwd())
        try:
            with redirect_stderr(io.StringIO()):  # submitit prints the reason there
                return _Job(trial, self.executor.submit(work))
        except (FailedJobError, FailedSubmissionError) as error:
            said = str(error) if isinstance(error, FailedJobError) else first_line(error)
            raise Refused(*_refusal(said, self.options)) from error
        except OSError as error:
            named = f"{error.filename}: " if error.filename else ""
            why = f"launcher is 'slurm': {named}{reason(error)}"
            raise Refused(why, "correct that, then run the study again") from error


def _refusal(said: str, options: Mapping[str, Any]) -> tuple[str, str]:
    """Return why sbatch refused a job, in its last two lines, and a hint at the options that they may mean.

    Example:
        >>> _refusal("sbatch: error: invalid partition specified: gpuu", {"slurm_partition": "gpuu"})
        ("launcher is 'slurm': sbatch: invalid partition specified: gpuu", 'correct slurm.slurm_partition')
    """
    lines = [line.strip().removeprefix("sbatch: error: ") for line in said.splitlines() if line.strip()]
    why = "; ".join(lines[-2:]) or "it says nothing"
    named = [name for name in options if re.search(rf"\b{name.removeprefix('slurm_')}\b", why, re.IGNORECASE)]
    correct = " or ".join(f"slurm.{name}" for name in named) or "slurm.*, as slurm.slurm_partition"
    return f"launcher is 'slurm': sbatch: {why}", f"correct {correct}"


def _check(options: Mapping[str, Any], processes: int) -> None:
    for name in _TASKS:
        if options.get(name, 1) != 1:
            raise SettingsError(
                f"slurm.{name} is {options[name]!r}; a trial is one task on one machine, where "
                "budget.processes are its processes"
            )
    for name in options.keys() & _UNREAD.keys():
        raise SettingsError(f"slurm.{name} is {options[name]!r}, which nothing reads: {_UNREAD[name]}")
    for name, value in options.items():
        kind, what = _KINDS.get(name, (object, "one value"))
        wrong = isinstance(value, list | dict) if kind is object else not isinstance(value, kind)
        if wrong or (isinstance(value, list) and not all(isinstance(each, str) for each in value)):
            raise SettingsError(f"slurm.{name} is {value!r}; it must be {what}")
    for name in ("gpus_per_node", "slurm_gpus_per_node"):
        gpus = options.get(name)
        if isinstance(gpus, int) and processes > 1 and gpus < processes:
            raise SettingsError(
                f"slurm.{name} is {gpus}, but budget.processes is {processes}, each of which needs a GPU"
            )


class _Work:
    """Body of a job, which runs a trial and ends it with a checkpoint at the time limit or a preemption."""

    def __init__(self, trial: Trial, budget: Budget, directory: str) -> None:
        self.trial, self.budget, self.directory = trial, budget, directory
        self.process: TrialProcess | None = None

    def __call__(self) -> int:
        self.process = TrialProcess(self.trial, self.budget, directory=self.directory)
        return self.process.wait()

    def checkpoint(self) -> Any:
        """End the trial with a checkpoint, and return the submission that submitit queues again."""
        if self.process is not None:
            self.process.end()
        return _submitit().helpers.DelayedSubmission(_Work(self.trial, self.budget, self.directory))


class _Job:
    """A job that was submitted."""

    asked: ClassVar[float] = -math.inf  # when SLURM was asked, which answers for all jobs at once

    def __init__(self, trial: Trial, job: Any) -> None:
        self.trial, self.job, self._next = trial, job, 0.0

    def poll(self) -> int | None:
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + _LOOK
        if ask := time.monotonic() >= _Job.asked + _ASK:
            _Job.asked = time.monotonic()
        if not self.job.done(force_check=ask):
            return None
        try:
            return int(self.job.result())
        except Exception as error:  # submitit raises several kinds, and the job's own error
            if not self.trial.error.is_file():
                # submitit's first line then is the path of the result
                state = re.search(r"has not produced any output \(state: (.*)\)", str(error))
                why = f"it ended without a result in the state {state[1]}" if state else first_line(error)
                where = f"see {self.job.paths.stderr}"
                write_whole(self.trial.error, f"job {self.job.job_id}: {why}; {where}")
            return 1

    def interrupt(self) -> None:
        """Cancel the job; SLURM first sends SIGTERM to its processes, so the training writes a checkpoint."""
        with suppress(OSError):
            self.job.cancel(check=False)

    def stop(self) -> None:
        """Do nothing: SLURM kills the processes of a cancelled job."""


def _submitit() -> Any:
    try:
        import submitit
    except ImportError as error:
        raise SettingsError(f"launcher is 'slurm', which needs submitit: {install('slurm')}") from error
    return submitit
