"""A run that is killed and started again with the same command ends with the weights of one that is not."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from floater.lab.cli import main
from floater.lab.training import checkpoints
from floater.lab.training.files import seal
from floater.lab.training.run_trainer import RunTrainer
from helpers import equal_runs, train_killed
from processes import in_process

from .conftest import Files
from .small import TASK, equal, settings, train, write_config


def command(config: Path, killed_in_step: int | None) -> int:
    """Run `floater train CONFIG` in a process that may be killed in a step."""
    whole = RunTrainer.training_step

    def training_step(self: RunTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step + 1 == killed_in_step:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(self, *args, **kwargs)

    RunTrainer.training_step = training_step
    return main(["train", str(config)])


def exit_code(config: Path, *, killed_in_step: int | None = None) -> int | None:
    return in_process(command, config, killed_in_step, said=config.with_suffix(".txt"))


def test_a_killed_run_ends_as_a_whole_one(tmp_path: Path, files: Files) -> None:
    parts = {"training": {"eval_steps": 6, "gradient_accumulation_steps": 2, "max_tokens": 300}}
    assert main(["train", str(write_config(tmp_path, files, "whole", **parts))]) == 0

    config, run = write_config(tmp_path, files, "killed", **parts), tmp_path / "killed"
    assert exit_code(config, killed_in_step=1) == -signal.SIGKILL
    assert (checkpoints(run), (run / "config.yaml").is_file()) == ([], True)
    assert exit_code(config, killed_in_step=6) == -signal.SIGKILL
    assert checkpoints(run)[-1].name == "checkpoint-4"
    assert not (run / "model").exists()
    assert exit_code(config) == 0

    for name in ("model", "checkpoint-12"):
        weights = (tmp_path / ended / name / "model.safetensors" for ended in ("whole", "killed"))
        assert equal(*map(load_file, weights))


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts",
    [
        {
            "model": {"times": {"mode": "stretch", "max_scale": 3.0}},
            "training": {"gradient_accumulation_steps": 2, "max_tokens": 300},
        },
        {
            "model": {"position_options": {"refresh_every": 2}},
            "training": {"flow": {"update_every": 2}, "save_steps": 2, "max_tokens": 900},
        },
    ],
    ids=["random-times", "flow-schedule"],
)
def test_a_run_that_failed_ends_as_a_whole_one(tmp_path: Path, files: Files, parts: dict[str, Any]) -> None:
    whole = train(settings(tmp_path, files, "whole", **parts))
    assert equal_runs(train_killed(TASK, settings(tmp_path, files, "killed", **parts), step=5), whole)


def test_a_run_does_not_go_on_with_other_processes(
    tmp_path: Path, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, files, training={"max_steps": 4})
    assert main(["train", str(config)]) == 0
    shutil.rmtree(tmp_path / "run" / "model")
    (checkpoint,) = checkpoints(tmp_path / "run")
    state = checkpoint / "rng_state.pth"
    shutil.copy(state, checkpoint / "rng_state_1.pth")
    state.rename(checkpoint / "rng_state_0.pth")  # as two processes leave them
    seal(checkpoint)
    capsys.readouterr()
    assert main(["train", str(config)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith("is of 2 processes, and 1 would read other batches; start it with 2")
