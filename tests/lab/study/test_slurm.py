"""A study as jobs of submitit, which its local executor runs on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from floater.lab.settings import SettingsError
from floater.lab.study import slurm_launcher
from floater.lab.study.grid import grid
from floater.lab.study.launch import choose_launcher
from floater.lab.study.settings import Budget
from floater.lab.study.slurm_launcher import SlurmLauncher

from .small import settings

pytest.importorskip("submitit", reason="needs submitit: pip install 'floater[slurm]'")


@pytest.mark.slow
def test_a_job_runs_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot begin, which says so as any other; a file there is no module of the library's."""
    (tmp_path / "random.py").write_text("raise SystemExit('this is no library')")
    monkeypatch.setattr(slurm_launcher.os, "getcwd", lambda: str(tmp_path))
    asked = settings(tmp_path, launcher="slurm")
    trial = grid(asked, "small").trials[0]
    trial.run.parent.mkdir()
    options = {"timeout_min": 5, "slurm_partition": "gpu"}
    job = SlurmLauncher(asked.budget, tmp_path, options, "local").start(trial)
    while (code := job.poll()) is None:
        time.sleep(0.1)
    assert code == 1
    assert trial.error.read_text().startswith("FileNotFoundError: ")
    assert "plan.json" in trial.error.read_text()
    assert "Traceback" in trial.log.read_text()
    assert list((tmp_path / "slurm").glob("jobs-*/*_log.out"))


class Lost:
    """A job that SLURM ended."""

    job_id = "7"
    paths = SimpleNamespace(stderr="7.err")

    def done(self) -> bool:
        return True

    def result(self) -> int:
        raise RuntimeError("node failed\nand more")


def test_a_job_that_was_lost_names_its_log(tmp_path: Path) -> None:
    trial = SimpleNamespace(error=tmp_path / "none-1.error")
    assert slurm_launcher._Job(trial, Lost()).poll() == 1
    assert trial.error.read_text() == "job 7: node failed; see 7.err"


def test_a_machine_without_slurm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="launcher is 'slurm': "):
        choose_launcher("slurm", Budget(), tmp_path, {})


def test_an_option_that_submitit_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"launcher is 'slurm': .*no_such_option"):
        SlurmLauncher(Budget(), tmp_path, {"no_such_option": 1}, "local")
