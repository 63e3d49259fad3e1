"""A study that is stopped lets its trials write checkpoints; one that is not there is not reported."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from floater.errors import DataError
from floater.lab.interruption import Interrupted
from floater.lab.settings import SettingsError
from floater.lab.study import launch, run
from floater.lab.study.grid import grid
from floater.lab.study.launch import run_trials
from floater.lab.study.local_launcher import Refused, Started
from floater.lab.study.results import gather
from floater.lab.study.variants import Trial
from floater.lab.training.lock import LOCK, locked

from .small import settings


class Slow:
    """A launcher whose trials take three looks to write their checkpoints, or never end."""

    slots = 2

    def __init__(self, ends: bool) -> None:
        self.ends, self.events = ends, list[str]()
        self.left = 3

    def start(self, trial: Trial) -> Slow:
        self.events.append("start")
        self.trial = trial
        return self

    def poll(self) -> int | None:
        if "interrupt" not in self.events:
            raise Interrupted(signal.SIGTERM)
        self.left -= 1
        if not (self.ends and self.left <= 0):
            return None
        self.trial.error.write_text("stopped by signal 15", encoding="utf-8")
        return 143

    def interrupt(self) -> None:
        self.events.append("interrupt")

    def stop(self) -> None:
        self.events.append("stop")


@pytest.mark.parametrize("ends", [True, False])
def test_trials_are_asked_to_end_before_they_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(launch, "POLL", 0.01)
    monkeypatch.setattr(launch, "GRACE", 0.2)
    asked = settings(tmp_path, seeds=[1])
    trials = grid(asked, "small")
    trials.write(threads=1)
    slow = Slow(ends)
    with pytest.raises(Interrupted):
        run_trials(trials, slow)
    assert {outcome.status for outcome in gather(asked, trials).outcomes} == {"open"}
    assert slow.events == ["start", "start", "interrupt", "interrupt", "stop", "stop"]


class Limited:
    """A launcher whose queue holds two trials; one that has ended counts until somebody asks again."""

    slots = 9

    def __init__(self, room: int) -> None:
        self.room, self.running, self.ended = room, list[str](), 0
        self.refused = list[int]()

    def start(self, trial: Trial) -> Started:
        if len(self.running) + self.ended >= self.room:
            self.refused.append(len(self.running))
            self.ended = 0
            raise Refused("the queue is full", "wait")
        self.running.append(trial.name)
        return SimpleNamespace(poll=lambda: self.end(trial.name), interrupt=int, stop=int)

    def end(self, name: str) -> int:
        self.running.remove(name)
        self.ended += 1
        return 0


@pytest.mark.parametrize("room", [1, 2])
def test_a_refused_trial_starts_once_another_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    monkeypatch.setattr(launch, "POLL", 0.01)
    monkeypatch.setattr(launch, "RETRY", 0.03)
    caplog.set_level("INFO", logger="floater")
    trials = grid(settings(tmp_path), "small")
    trials.write(threads=1)
    limited = Limited(room)
    run_trials(trials, limited)
    assert not limited.running
    ended = [line for line in caplog.messages if ": finished (" in line]
    assert len(ended) == len(trials.trials) == 4
    (told,) = (line for line in caplog.messages if "the queue is full" in line)
    assert told == (
        f"the queue is full; {room} of the trials run, the others start as these end; budget.cores limits "
        "how many are started"
    )
    assert limited.refused[0] == room
    assert len(limited.refused) < 8


def test_a_trial_that_is_refused_while_none_runs_ends_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "POLL", 0.01)
    trials = grid(settings(tmp_path), "small")
    trials.write(threads=1)
    limited = Limited(0)
    with pytest.raises(SettingsError, match="the queue is full; wait"):
        run_trials(trials, limited)
    assert limited.refused == [0]


def test_a_second_stage_waits_for_the_places_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "POLL", 0.01)
    monkeypatch.setattr(launch, "RETRY", 0.03)
    trials = grid(settings(tmp_path), "small")
    trials.write(threads=1)
    limited = Limited(1)
    limited.ended = 1  # SLURM still counts the last tuning trial
    run_trials(trials, limited, first=False)
    assert limited.refused[0] == 0
    assert not limited.running


def test_a_report_of_what_is_no_study_is_refused(tmp_path: Path) -> None:
    asked = settings(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"nothing holds no study \(no study.yaml\) to report"):
        run.study(asked, train=False)
    assert not list(tmp_path.iterdir())


def test_a_second_study_says_who_runs_the_first(tmp_path: Path) -> None:
    with locked(tmp_path / "study"):
        there = json.loads((tmp_path / "study" / LOCK).read_text())
        assert (there["pid"], there["host"]) == (os.getpid(), socket.gethostname())
        with pytest.raises(DataError, match=rf"study is in use by process {os.getpid()} on \S+ since 20"):
            run.study(settings(tmp_path / "study"))
