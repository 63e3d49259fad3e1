"""A study as jobs of submitit, which its local executor runs on this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from floater.lab.settings import SettingsError
from floater.lab.study import slurm_launcher
from floater.lab.study.grid import grid
from floater.lab.study.launch import choose_launcher
from floater.lab.study.local_launcher import Refused
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

    def done(self, force_check: bool = False) -> bool:
        return True

    def result(self) -> int:
        raise RuntimeError("node failed\nand more")


def test_a_job_that_was_lost_names_its_log(tmp_path: Path) -> None:
    trial = SimpleNamespace(error=tmp_path / "none-1.error")
    assert slurm_launcher._Job(trial, Lost()).poll() == 1
    assert trial.error.read_text() == "job 7: node failed; see 7.err"


def test_a_job_that_was_cancelled_names_its_state(tmp_path: Path) -> None:
    """The message of submitit begins with the path of the missing result."""
    from submitit.slurm.slurm import SlurmJob

    class Cancelled(SlurmJob):  # type: ignore[misc]
        state = "CANCELLED by 1000"
        _results_timeout_s = 0

        def done(self, force_check: bool = False) -> bool:
            return True

    trial = SimpleNamespace(error=tmp_path / "none-1.error")
    assert slurm_launcher._Job(trial, Cancelled(tmp_path, "7")).poll() == 1
    text = trial.error.read_text()
    assert text.startswith("job 7: it ended without a result in the state CANCELLED by 1000; see ")
    assert text.endswith("7_0_log.err")


def test_a_machine_without_slurm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="launcher is 'slurm': "):
        choose_launcher("slurm", Budget(), tmp_path, {})


def test_an_option_that_submitit_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"launcher is 'slurm': .*no_such_option"):
        SlurmLauncher(Budget(), tmp_path, {"no_such_option": 1}, "local")


def cluster(folder: Path, patch: pytest.MonkeyPatch, sbatch: str) -> None:
    """Make a cluster whose sbatch is a script."""
    for name, script in {"srun": "", "sbatch": sbatch}.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_job_gives_its_trial_the_cores_and_gpus_of_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(tmp_path, monkeypatch, "echo Submitted batch job 7")
    asked = settings(tmp_path, launcher="slurm")
    budget = Budget(processes=4, threads=2, trial_memory=3.5)
    SlurmLauncher(budget, tmp_path, {"slurm_partition": "gpu"}).start(grid(asked, "small").trials[0])
    script = next((tmp_path / "slurm").glob("jobs-*/7_*.sh"))
    lines = script.read_text().splitlines()
    wanted = {"--cpus-per-task=8", "--gpus-per-node=4", "--mem=4GB", "--partition=gpu", "--nodes=1"}
    assert wanted <= {line.removeprefix("#SBATCH ") for line in lines}
    (srun,) = (line for line in lines if line.startswith("srun "))
    assert "--cpus-per-task=8" in srun.split()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slurm_srun_args": "--exclusive"}, "slurm_srun_args is '--exclusive'; it must be a list of texts"),
        ({"slurm_setup": "module load a"}, "slurm_setup is 'module load a'; it must be a list of texts"),
        ({"slurm_setup": [1]}, r"slurm_setup is \[1\]; it must be a list of texts"),
        ({"slurm_additional_parameters": "account=a"}, "is 'account=a'; it must be a mapping"),
        ({"slurm_job_name": "a"}, "is 'a', which nothing reads: a job has the name of its trial"),
        ({"slurm_array_parallelism": 2}, "is 2, which nothing reads: each trial is a job; budget.cores"),
        ({"slurm_partition": ["a", "b"]}, r"slurm_partition is \['a', 'b'\]; it must be one value"),
    ],
)
def test_an_option_of_the_wrong_kind_is_named(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    """One text would be passed to srun letter by letter."""
    with pytest.raises(SettingsError, match=rf"^slurm\..*{message}"):
        SlurmLauncher(Budget(), tmp_path, options, "local")


def test_an_option_without_a_value_has_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(tmp_path, monkeypatch, "echo Submitted batch job 7")
    options = dict.fromkeys(["slurm_cpus_per_task", "slurm_srun_args", "timeout_min"])
    SlurmLauncher(Budget(threads=2), tmp_path, options).start(grid(settings(tmp_path), "small").trials[0])
    lines = next((tmp_path / "slurm").glob("jobs-*/7_*.sh")).read_text().splitlines()
    assert {"#SBATCH --time=1440", "#SBATCH --cpus-per-task=2"} <= {*lines}
    assert any(line.startswith("srun ") and "--cpus-per-task=2" in line.split() for line in lines)


@pytest.mark.parametrize(
    ("sbatch", "message"),
    [
        (
            "echo 'sbatch: error: note' >&2; echo 'sbatch: error: invalid partition specified: gpuu' >&2\n"
            "echo 'sbatch: error: Batch job submission failed' >&2; exit 1",
            "sbatch: invalid partition specified: gpuu; Batch job submission failed; correct "
            "slurm.slurm_partition",
        ),
        ("exit 1", "sbatch: it says nothing; correct slurm.*, as slurm.slurm_partition"),
        ("echo all is well", 'sbatch: Could not make sense of sbatch output "all is well'),
    ],
)
def test_a_job_that_is_refused_says_why_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    sbatch: str,
    message: str,
) -> None:
    cluster(tmp_path, monkeypatch, sbatch)
    launcher = SlurmLauncher(Budget(), tmp_path, {"slurm_partition": "gpuu", "timeout_min": 5})
    with pytest.raises(Refused) as refusal:
        launcher.start(grid(settings(tmp_path), "small").trials[0])
    assert str(refusal.value).startswith(f"launcher is 'slurm': {message}")
    assert len(str(refusal.value).splitlines()) == 1
    assert capfd.readouterr().err == ""


def test_a_job_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(tmp_path, monkeypatch, "")
    launcher = SlurmLauncher(Budget(), tmp_path, {})
    (tmp_path / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        Refused, match=r"launcher is 'slurm': sbatch: No such file or directory; correct that"
    ):
        launcher.start(grid(settings(tmp_path), "small").trials[0])


def test_slurm_is_asked_for_the_states_of_all_jobs_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a job that was cancelled from outside counts as running for ten minutes."""
    asked, clock = list[bool](), [100.0]
    monkeypatch.setattr(slurm_launcher, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(slurm_launcher._Job, "asked", 0.0)
    running = SimpleNamespace(done=lambda force_check=False: asked.append(force_check))
    jobs = [slurm_launcher._Job(SimpleNamespace(), running) for _ in range(2)]
    for clock[0] in (100.0, 110.0, 159.0, 170.0):
        assert [job.poll() for job in jobs] == [None, None]
    assert asked == [True, False, False, False, False, False, True, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 2}, "slurm.nodes is 2; a trial is one task on one machine"),
        ({"slurm_ntasks_per_node": 4}, "slurm.slurm_ntasks_per_node is 4; a trial is one task"),
        ({"gpus_per_node": 1}, "slurm.gpus_per_node is 1, but budget.processes is 8"),
    ],
)
def test_what_would_start_a_trial_twice_or_share_gpus_is_refused(
    tmp_path: Path, options: dict[str, int], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        SlurmLauncher(Budget(processes=8), tmp_path, options, "local")
