"""A run that is killed and started again with the same command ends with the weights of one that is not."""

import multiprocessing
import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from floater.cli import main
from floater.training import checkpoints

from .conftest import Files
from .small import equal, write_config


def command(config: Path) -> None:
    """What `floater train CONFIG` does, in a process without a GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    raise SystemExit(main(["train", str(config)]))


def started(config: Path) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["floater.tasks.translation"])
    process = context.Process(target=command, args=(config,))
    process.start()
    return process


def killed_when_there_is(path: Path, config: Path) -> int | None:
    process = started(config)
    until = time.monotonic() + 120
    while not path.exists() and process.is_alive() and time.monotonic() < until:
        time.sleep(0.002)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(timeout=120)
    return process.exitcode


def finished(config: Path) -> int | None:
    process = started(config)
    process.join(timeout=120)
    return process.exitcode


@pytest.mark.parametrize(
    "parts",
    [
        {"training": {"validate_every": 6, "accumulation": 2, "max_tokens": 300}},
        {
            "model": {"position_options": {"refresh_every": 2}},
            "training": {"flow": {"update_every": 2}, "save_every": 2, "max_tokens": 900},
        },
    ],
    ids=["plain", "flow-schedule"],
)
def test_a_killed_run_ends_as_a_whole_one(tmp_path: Path, files: Files, parts: dict[str, Any]) -> None:
    whole = write_config(tmp_path, files, "whole", **parts)
    assert finished(whole) == 0

    config, run = write_config(tmp_path, files, "killed", **parts), tmp_path / "killed"
    assert killed_when_there_is(run / "config.yaml", config) == -signal.SIGKILL
    assert killed_when_there_is(run / "checkpoint-4", config) == -signal.SIGKILL
    assert [path.name for path in checkpoints(run)][-1] in ("checkpoint-4", "checkpoint-6")
    assert not (run / "model").exists()
    assert finished(config) == 0

    for file in ("model", "checkpoint-12"):
        expected, found = (load_file(run / file / "model.safetensors") for run in (tmp_path / "whole", run))
        assert equal(expected, found)
