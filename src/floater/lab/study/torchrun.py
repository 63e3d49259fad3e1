"""The training of a trial in several processes, which torchrun starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from floater.errors import DataError

TRAIN = "train"
"""Argument of `floater.lab.study.trial` in each of these processes, which train and score nothing."""


def train_together(folder: Path, name: str, processes: int, error: Path) -> None:
    """Train a trial, or resume it, in several processes of this machine.

    This process then scores with the first of its GPUs. A request to stop is passed on, so that they write a
    checkpoint; they end with this process, whose end closes their standard input.

    Args:
        folder: the study's folder.
        name: name of the trial.
        processes: number of processes.
        error: file in which a process that fails writes why.

    Raises:
        DataError: if they fail, with the error of the first that reported one.
    """
    launcher = ["-P", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    process = subprocess.Popen(
        [sys.executable, *launcher, "-m", "floater.lab.study.trial", str(folder), name, TRAIN],
        stdin=subprocess.PIPE,
        env=os.environ | {"PYTHONSAFEPATH": "1"},  # -P for the processes that it starts
    )
    try:
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code:
        ended = f"torchrun ended with exit code {code}"
        raise DataError(error.read_text(encoding="utf-8") if error.is_file() else ended)
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
