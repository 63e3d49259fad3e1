"""A trial in several processes is the trial of one, with as many batches in a step."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from floater.errors import DataError
from floater.lab.study import torchrun
from floater.lab.study.grid import grid
from floater.lab.study.settings import Budget
from floater.lab.study.torchrun import train_together
from floater.lab.study.trial import error_file, train_trial
from floater.lab.study.trial_process import TrialProcess

from .small import SIZES, settings


def trial(folder: Path, budget: Budget) -> tuple[Path, Any]:
    """Run the trial of a study whose steps have two batches of a process, as a launcher does."""
    asked = settings(folder, models={"floater": {}}, seeds=[1])
    asked.settings["model"]["changes"] = SIZES | {"decoder_layers": 1, "dropout": 0.0}
    asked.settings["training"] |= {"max_steps": 2, "eval_steps": 2, "batches_per_step": 2, "average_last": 0}
    trials = grid(replace(asked, budget=budget), "small")
    trials.write(budget.threads, budget.processes)
    (one,) = trials.trials
    assert TrialProcess(one, budget).wait() == 0, one.log.read_text()
    return one.run, json.loads((one.run / "measured" / "lengths.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_two_processes_train_the_trial_of_one(tmp_path: Path) -> None:
    one, alone = trial(tmp_path / "one", Budget(processes=1))
    two, together = trial(tmp_path / "two", Budget(processes=2))
    assert {path.name for path in (two / "checkpoint-2").glob("rng_state*")} == {
        "rng_state_0.pth",
        "rng_state_1.pth",
    }
    expected, actual = (load_file(run / "model" / "model.safetensors") for run in (one, two))
    for name, weight in expected.items():
        # Adam divides by the size of the gradient, so that rounding shows in elements with hardly any
        torch.testing.assert_close(actual[name], weight, rtol=0, atol=2e-3)
    assert together["metrics"] == alone["metrics"], "scored by one process"


class Ended:
    def __init__(self, code: int, requests: list[str]) -> None:
        self.code, self.requests = code, requests

    def wait(self) -> int:
        if self.code < 0 and not self.requests:
            raise KeyboardInterrupt
        return self.code

    def terminate(self) -> None:
        self.requests.append("terminate")


def test_a_failure_has_the_reason_of_the_process_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = tmp_path / "none-1.error"
    started: list[list[str]] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    codes, requests = [1, 1, -1, 0], list[str]()
    monkeypatch.setattr(
        subprocess, "Popen", lambda words, **_: started.append(words) or Ended(codes.pop(0), requests)
    )
    with pytest.raises(DataError, match="torchrun ended with exit code 1"):
        train_together(tmp_path, "none-1", 2, error)
    error.write_text("train.en is empty", encoding="utf-8")
    with pytest.raises(DataError, match=r"^train.en is empty$"):
        train_together(tmp_path, "none-1", 2, error)
    with pytest.raises(KeyboardInterrupt):
        train_together(tmp_path, "none-1", 2, error)
    assert requests == ["terminate"]
    train_together(tmp_path, "none-1", 2, error)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2", "scored on one"
    assert started[0][-4:] == ["floater.lab.study.trial", str(tmp_path), "none-1", torchrun.TRAIN]


def test_the_error_is_that_of_the_process_that_failed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others then lose their connection to it."""
    errors = [ValueError("the flow diverges"), RuntimeError("Connection closed by peer")]

    def fail(folder: Path, name: str) -> None:
        raise errors.pop(0)

    monkeypatch.setattr("floater.lab.study.trial._train", fail)
    (tmp_path / "trials").mkdir()
    assert [train_trial(tmp_path, "none-1") for _ in range(2)] == [1, 1]
    assert error_file(tmp_path, "none-1").read_text(encoding="utf-8") == "the flow diverges"
