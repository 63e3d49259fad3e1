"""A trial of a study in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import psutil

from floater.lab.study.machine import own_memory
from floater.lab.study.settings import Budget
from floater.lab.study.variants import Trial
from floater.lab.training.files import no_link, write_whole

GRACE = 20.0  # seconds for a step and a checkpoint; SLURM kills 30 s after it asks
POLL = 0.5  # seconds between two looks at a process


class TrialProcess:
    """A running trial; it ends with this process, or when it exceeds the memory of a trial.

    Args:
        trial: the trial.
        budget: the study's budget, for the trial's cores and memory.
        environment: changes to this process's environment variables.
        directory: directory of the study's relative paths; None for this process's.
        ended: function that is called when it has ended.
    """

    def __init__(
        self,
        trial: Trial,
        budget: Budget,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.trial, self.gib, self.ended = trial, budget.trial_memory, ended
        self.several = budget.processes > 1
        self.log = open(trial.log, "a", encoding="utf-8", opener=no_link)  # noqa: SIM115
        self.process = subprocess.Popen(
            # -P: a file random.py where the study was started is not the library's random
            [sys.executable, "-P", "-m", "floater.lab.study.trial", str(trial.folder), trial.name],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the study, which passes it on
            stdout=self.log,
            stderr=self.log,
            cwd=directory,
            env=os.environ | _trial_environment(budget.threads) | dict(environment or {}),
        )

    def poll(self) -> int | None:
        """Return the exit code, or None while the trial runs.

        A trial that exceeds its memory is stopped; the reason of that, or of a signal, is in its error file.
        """
        code = self.process.poll()
        if code is None:
            try:
                one = psutil.Process(self.process.pid)
                together = [one, *(one.children(recursive=True) if self.several else [])]
                used = sum(map(own_memory, together))
            except psutil.Error:
                return None
            if used > self.gib:
                self.stop()
                write_whole(self.trial.error, f"used {used:.1f} GiB; budget.trial_memory is {self.gib} GiB")
            return None
        if not self.log.closed:
            self.log.close()
            self.ended()
            if not self.trial.error.is_file():
                if code < 0:
                    write_whole(self.trial.error, f"ended by signal {-code}; 9 may mean that memory ran out")
                elif code > 128:
                    write_whole(self.trial.error, f"stopped by signal {code - 128}; start the study again")
        return code

    def wait(self) -> int:
        """Wait for the end of the trial and return its exit code."""
        while (code := self.poll()) is None:
            time.sleep(POLL)
        return code

    def interrupt(self) -> None:
        """Request that the trial finishes its step and writes a checkpoint."""
        self.process.terminate()

    def end(self) -> None:
        """Interrupt the trial, and stop it if it does not end within `GRACE` seconds."""
        self.interrupt()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        self.stop()

    def stop(self) -> None:
        """Stop the trial at once."""
        self.process.kill()
        self.process.wait()


def _trial_environment(threads: int) -> dict[str, str]:
    """Return the environment of a trial: its number of threads, and few progress bars in its log."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(threads)) | {"TOKENIZERS_PARALLELISM": "false", "TQDM_MININTERVAL": "30"}
