"""A study on a Ray cluster of this machine: a head without cores, and two workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from floater.lab.settings import SettingsError
from floater.lab.study import ray_launcher, run
from floater.lab.study.grid import grid
from floater.lab.study.launch import choose_launcher, run_trials
from floater.lab.study.settings import Budget
from floater.lab.study.trial import is_trained

from .small import run_inline, settings

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'floater[ray]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    # Ray's workers have niceness 15: on a machine that is busy their imports take a minute.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        cluster.add_node(num_cpus=2, memory=4 * 2**30)
        cluster.wait_for_nodes()
        cluster.connect()
        yield cluster
        ray.shutdown()
        cluster.shutdown()


def test_the_cluster_gives_the_table_of_one_machine(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = {"position": "none", "settings": {"training": {"max_tokens": 30}}}
    changes = {"models": {"none": {}, "broken": broken}, "seeds": [1], "budget": {"trial_memory": 2.0}}
    caplog.set_level("INFO", "floater")
    there = run.study(settings(tmp_path / "ray", launcher="ray", **changes))
    assert [outcome.status for outcome in there.outcomes] == ["finished", "failed"]
    assert "more than training.max_tokens, 30" in there.outcomes[1].error
    assert any(text.startswith("broken-1: failed: a training pair, line ") for text in caplog.messages)

    run_inline(monkeypatch)
    run.study(settings(tmp_path / "here", **changes))
    tables = [(tmp_path / name / "scores.csv").read_text(encoding="utf-8") for name in ("ray", "here")]
    assert tables[0] == tables[1]


def test_a_trial_that_outgrows_its_memory_is_stopped(cluster: Any, tmp_path: Path) -> None:
    asked = settings(tmp_path, launcher="ray", models={"none": {}}, seeds=[1], budget={"trial_memory": 0.05})
    (outcome,) = run.study(asked).outcomes
    assert "budget.trial_memory is 0.05 GiB" in outcome.error


def test_a_trial_too_large_for_every_machine_is_refused(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no machine of the Ray cluster has 1 cores, 500.0 GiB of"):
        choose_launcher("ray", Budget(trial_memory=500.0), tmp_path, {})


def test_a_cluster_that_lost_its_machines_ends_the_study(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_launcher, "PATIENCE", 0.0)
    monkeypatch.setattr(ray_launcher, "LOOK", 0.1)
    large = cluster.add_node(num_cpus=1, memory=9 * 2**30)
    cluster.wait_for_nodes()
    launched = choose_launcher("ray", Budget(trial_memory=8.0), tmp_path, {})
    cluster.remove_node(large)
    trials = grid(settings(tmp_path, launcher="ray", models={"none": {}}, seeds=[1]), "here")
    with pytest.raises(SettingsError, match=r"lost every machine with 1 cores, 8\.0 GiB of memory"):
        run_trials(trials, launched)


def test_a_trial_that_a_machine_cannot_start_says_why(cluster: Any, tmp_path: Path) -> None:
    asked = settings(tmp_path, launcher="ray", models={"none": {}}, seeds=[1], budget={"trial_memory": 2.0})
    (trial,) = grid(asked, "here").trials
    trial.log.mkdir(parents=True)  # the log cannot be opened
    started = choose_launcher("ray", asked.budget, tmp_path, {}).start(trial)
    while (code := started.poll()) is None:
        time.sleep(0.1)
    assert code == 1
    assert trial.error.read_text().startswith("Ray: [Errno 21] Is a directory: ")


def test_a_trial_whose_worker_was_killed_is_tried_again(cluster: Any, tmp_path: Path) -> None:
    asked = settings(tmp_path, launcher="ray", models={"none": {}}, seeds=[1], budget={"trial_memory": 2.0})
    trials = grid(asked, "here")
    trials.write(asked.budget.threads)
    (trial,) = trials.trials
    started = choose_launcher("ray", asked.budget, tmp_path, {}).start(trial)
    workers: list[int] = []
    while not workers:
        assert started.poll() is None
        time.sleep(0.5)
        each = psutil.process_iter(["cmdline", "ppid"])
        workers = [p.info["ppid"] for p in each if str(tmp_path) in (p.info["cmdline"] or ())]
    psutil.Process(workers[0]).kill()
    while (code := started.poll()) is None:
        time.sleep(0.5)
    assert code == 0
    assert is_trained(trial.run)
