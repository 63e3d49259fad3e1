"""Two processes, full disks, lost directories, rates too high: a line says it, and nothing whole is lost."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from floater.errors import DataError
from floater.flow import FlowEncoder
from floater.lab.cli import main
from floater.lab.settings import dump
from floater.lab.training.checkpoints import checkpoints
from floater.lab.training.divergence import DivergenceError, is_finite
from floater.lab.training.lock import LOCK, locked
from helpers import At, equal_runs, kill, train_with

from .small_run import TASK, names, settings


def holder(folder: Path) -> int:
    """Return the id of a process that holds the lock of a directory, and does so until it is killed."""
    ready, begun = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with locked(folder):
                os.write(begun, b"1")
                signal.pause()
        finally:
            os._exit(1)
    assert os.read(ready, 1) == b"1"
    return child


def test_a_second_training_says_who_has_the_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = settings(tmp_path / "run")
    (tmp_path / "run.yaml").write_text(dump(asked))
    child = holder(Path(asked.run))
    try:
        assert main(["train", str(tmp_path / "run.yaml")]) == 2
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"floater: {asked.run} is in use by process {child} on {socket.gethostname()} since 20"
    )
    assert (Path(asked.run) / LOCK).exists(), "it was killed"
    assert main(["train", str(tmp_path / "run.yaml")]) == 0
    assert not (Path(asked.run) / LOCK).exists()


def test_a_lock_leaves_no_directory_that_nothing_was_written_to(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="wrong"), locked(tmp_path / "a" / "b"):
        raise DataError("wrong")
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_is_refused_before_data_are_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(TASK, "read", lambda _: pytest.fail("data were read"))
    asked = settings(Path("/proc/floater/run"))
    (tmp_path / "run.yaml").write_text(dump(asked))
    assert main(["train", str(tmp_path / "run.yaml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("floater: /proc/floater")


def test_a_full_disk_is_a_line_and_the_run_resumes(tmp_path: Path) -> None:
    whole = TASK.train(settings(tmp_path / "whole"))
    asked = settings(tmp_path / "run")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (whole / "checkpoint-8" / "optimizer.pt").stat().st_size

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1000, before[1]))

    try:
        with pytest.raises(
            DataError, match=r"checkpoint-8 cannot be written \(.*\); start the training again"
        ) as error:
            train_with(TASK, asked, At(7, fill))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(str(error.value).splitlines()) == 1
    assert names(Path(asked.run)) == ["checkpoint-4"]
    assert equal_runs(TASK.train(asked), whole)


@pytest.mark.parametrize("replacement", ["nothing", "a file"])
def test_a_training_goes_on_without_curves(
    tmp_path: Path, replacement: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = settings(tmp_path / "run", logging_steps=1)
    curves = Path(asked.run) / "tensorboard"

    def lose() -> None:
        shutil.rmtree(curves)
        if replacement == "a file":
            curves.touch()

    run = train_with(TASK, asked, At(5, lose))
    assert (run / "model").is_dir()
    assert "Traceback" not in capfd.readouterr().err
    told = [record.message for record in caplog.records if "TensorBoard" in record.message]
    assert len(told) == (replacement == "a file")


def test_without_tensorboard_a_training_has_no_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    run = TASK.train(settings(tmp_path / "run", max_steps=4))
    assert not (run / "tensorboard").exists()


def not_finite(run: Path) -> list[Path]:
    """Return the checkpoints of a run with weights that are not finite."""
    tensors = {path: load_file(path / "model.safetensors").values() for path in checkpoints(run)}
    return [path for path, values in tensors.items() if not all(map(torch.isfinite, map(torch.sum, values)))]


def test_a_rate_too_high_is_named_and_the_last_finite_checkpoint_is_kept(tmp_path: Path) -> None:
    """The log comes too late: four checkpoints would have been written since."""
    asked = settings(
        tmp_path / "run", learning_rate=1e19, warmup_steps=8, save_steps=1, logging_steps=100, max_steps=20
    )
    with pytest.raises(DivergenceError) as error:
        TASK.train(asked)
    run, message = Path(asked.run), str(error.value)
    left = checkpoints(run)
    assert left
    assert not not_finite(run)
    step = int(left[-1].name.rpartition("-")[2]) + 1
    assert f" step {step}; learning rate {1e19 * (step - 1) / 8:.3g}, norm of the gradient " in message
    assert "in another run directory, lower training.learning_rate, or raise training.warmup_steps" in message
    assert message.endswith(f"; the weights of {left[-1]} are finite")


def test_weights_that_overflow_in_an_update_are_not_saved(tmp_path: Path) -> None:
    asked = settings(tmp_path / "run", save_steps=1, warmup_steps=1, logging_steps=100)

    class Overflow(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if state.global_step == 5:
                with torch.no_grad():
                    next(model.parameters()).fill_(math.inf)

    with pytest.raises(DivergenceError, match="weights are not finite after step 5; learning rate"):
        train_with(TASK, asked, Overflow())
    assert names(Path(asked.run)) == ["checkpoint-3", "checkpoint-4"]


@pytest.mark.parametrize(("step", "when"), [(5, "at step 6"), (6, "in the validation after step 6")])
def test_a_flow_that_diverges_names_its_rate(step: int, when: str, tmp_path: Path) -> None:
    """The error of the solver alone would not say what moved the field there."""
    rates = {
        "lr_scheduler_type": "constant_with_warmup",
        "learning_rate": 1e-3,
        "flow": {"lr_multiplier": 10},
    }
    asked = settings(tmp_path / "run", {"position": "floater"}, **rates)

    class Stiffen(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if state.global_step == step:
                for module in model.modules():
                    if isinstance(module, FlowEncoder):
                        torch.nn.init.constant_(next(module.field.parameters()), math.inf)

    with pytest.raises(
        DivergenceError, match=rf"the training diverged: the flow .* {when}; learning rate"
    ) as error:
        train_with(TASK, asked, Stiffen())
    assert "learning rate of the flow 0.01, norm of the gradient" in str(error.value)
    assert "lower training.flow.lr_multiplier" in str(error.value)


def test_finite_weights() -> None:
    layer = torch.nn.Linear(2, 2)
    assert is_finite(layer)
    with torch.no_grad():
        layer.bias[0] = math.nan
    assert not is_finite(layer)


def test_what_a_killed_run_had_is_resumed(tmp_path: Path) -> None:
    run = kill(TASK, settings(tmp_path / "run"), 9)
    assert json.loads((run / "log.json").read_text())[-1]["step"] == 8
    assert names(TASK.train(settings(run))) == ["checkpoint-12", "checkpoint-8"]
