"""Trials that run at once on one machine, within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from floater.lab.study import launch, local_launcher
from floater.lab.study.grid import grid
from floater.lab.study.launch import run_trials
from floater.lab.study.local_launcher import LocalLauncher
from floater.lab.study.settings import Budget
from floater.lab.study.trial import is_finished

from .small import settings


@pytest.mark.parametrize(
    ("budget", "slots"),
    [
        ({"cores": 8, "threads": 3, "memory": 100.0}, 2),
        ({"cores": 8, "memory": 5.0, "trial_memory": 2.0}, 2),
    ],
)
def test_the_budget_says_how_many_trials_run_at_a_time(budget: dict[str, float], slots: int) -> None:
    assert LocalLauncher(Budget(**budget)).slots == slots  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("visible", "budget", "expected"),
    [
        ("2,5", {"gpus": 0.5}, ["2", "5", "2", "5"]),
        ("2,5,6,7,9", {"processes": 2}, ["2,5", "6,7"]),
        ("2,5,6,7", {"cores": 24, "processes": 4, "threads": 3}, ["2,5,6,7"]),
    ],
)
def test_trials_get_the_gpus_that_the_study_was_given(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    visible: str,
    budget: dict[str, Any],
    expected: list[str],
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(visible.split(",")))
    environments: list[str] = []
    monkeypatch.setattr(
        local_launcher,
        "TrialProcess",
        lambda trial, budget, environment, **_: environments.append(environment["CUDA_VISIBLE_DEVICES"]),
    )
    study_grid = grid(settings(tmp_path), "here")
    study_grid.write(threads=1)
    there = LocalLauncher(Budget(**{"cores": 8, "memory": 100.0} | budget))
    for trial in study_grid.trials[: there.slots]:
        there.start(trial)
    assert environments == expected


def test_a_budget_without_room_for_a_trial_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2 cores.*no room for a trial of 1 threads, 1000.0 GiB"):
        LocalLauncher(Budget(cores=2, trial_memory=1000.0))


def test_trials_stay_within_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more at a time than there is room for, and as many as there is."""

    class Slow:
        def __init__(self) -> None:
            Slow.now += 1
            Slow.most = max(Slow.most, Slow.now)
            self.left = 3

        def poll(self) -> int | None:
            self.left -= 1
            if self.left > 0:
                return None
            Slow.now -= 1
            return 0

        def stop(self) -> None: ...

        now = most = 0

    class Devices:
        slots = 3

        def start(self, trial: object) -> Slow:
            return Slow()

    monkeypatch.setattr(launch, "POLL", 0)
    trials = grid(settings(tmp_path, seeds=[1, 2, 3, 4, 5]), "here")
    trials.write(threads=1)
    run_trials(trials, Devices())
    assert (Slow.most, Slow.now) == (3, 0)


def test_a_trial_that_outgrows_its_memory_is_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study_grid = grid(settings(tmp_path, models={"none": {}}, seeds=[1]), "here")
    study_grid.write(threads=1)
    with caplog.at_level("INFO", "floater"):
        run_trials(study_grid, LocalLauncher(Budget(cores=1, trial_memory=0.05)))
    said = caplog.messages
    assert said[1:] == [
        f"none-1: failed: {study_grid.trials[0].error.read_text(encoding='utf-8')} (1 of 1 trials)"
    ]
    assert "budget.trial_memory is 0.05 GiB" in said[1]
    assert not is_finished(study_grid.trials[0].run, study_grid.tests)
