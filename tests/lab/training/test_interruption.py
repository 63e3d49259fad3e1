"""Signals end a training with a checkpoint, and a resumed run ends as one that was not stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from floater.lab import cli
from floater.lab.interruption import Interrupted, StopRequest, deferred, raising
from floater.lab.training.files import UNFINISHED
from helpers import At, equal_runs, kill, train_with

from .small_run import TASK, AtEvaluation, names, settings

FLOW = {"position": "floater"}
REUSED = {"position": "floater", "position_options": {"refresh_every": 3}}
KINKED = {"position": "floater", "position_options": {"field": "mlp", "activation": "relu"}}
BY_EPOCH = {"save_strategy": "epoch", "eval_strategy": "epoch", "max_steps": 18}
CASES: dict[str, tuple[type[At], int, dict[str, Any], list[str]]] = {
    "between checkpoints": (At, 6, {}, ["checkpoint-4", "interrupted-6"]),
    "before the first checkpoint": (At, 1, {}, ["interrupted-1"]),
    "at a checkpoint": (At, 8, {}, ["checkpoint-4", "checkpoint-8"]),
    "at the last step": (At, 12, {}, ["checkpoint-12", "checkpoint-8"]),
    "at an epoch's end": (At, 6, BY_EPOCH, ["checkpoint-6"]),
    "within an epoch": (At, 8, BY_EPOCH, ["checkpoint-6", "interrupted-8"]),
    "in a validation": (AtEvaluation, 6, {"eval_steps": 3}, ["checkpoint-4", "interrupted-6"]),
    "a flow, between checkpoints": (At, 6, {"model": FLOW}, ["checkpoint-4", "interrupted-6"]),
    "a flow, at a checkpoint": (At, 8, {"model": FLOW}, ["checkpoint-4", "checkpoint-8"]),
    "a flow with kinks": (At, 6, {"model": KINKED}, ["checkpoint-4", "interrupted-6"]),
    "between solves of a flow": (At, 5, {"model": REUSED}, ["checkpoint-4", "interrupted-7"]),
    "between updates of a flow": (
        At,
        5,
        {"model": FLOW, "flow": {"update_every": 2}},
        ["checkpoint-4", "interrupted-6"],
    ),
}
NUMBERS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], Path]:
    """Train a run that is not stopped, once for the same changes of the settings."""
    runs: dict[str, Path] = {}

    def train(changes: dict[str, Any]) -> Path:
        name = repr(changes)
        if name not in runs:
            runs[name] = TASK.train(settings(tmp_path_factory.mktemp("whole") / "run", **changes))
        return runs[name]

    return train


def validations(run: Path) -> list[tuple[int, float]]:
    log = json.loads((run / "log.json").read_text())
    return [(entry["step"], entry["eval_loss"]) for entry in log if "eval_loss" in entry]


def test_a_checkpoint_at_an_epochs_end_knows_the_validation_there(tmp_path: Path) -> None:
    """A run that resumed from it had no such validation in its log, and perhaps another best one."""
    by_epoch = {"eval_strategy": "epoch", "save_steps": 3, "early_stopping_patience": 9}
    whole, killed = (settings(tmp_path / name, **by_epoch) for name in ("whole", "killed"))
    expected = validations(TASK.train(whole))
    assert [step for step, _ in expected] == [6, 12]
    kill(TASK, killed, 7)
    assert validations(TASK.train(killed)) == expected
    shutil.rmtree(tmp_path / "killed" / "model")  # killed after the last step
    assert validations(TASK.train(killed)) == expected
    assert equal_runs(tmp_path / "killed", tmp_path / "whole")
    assert not (tmp_path / "killed" / UNFINISHED).exists()


@pytest.mark.parametrize("name", CASES)
def test_a_stopped_run_ends_as_a_whole_one(
    tmp_path: Path, whole: Callable[[dict[str, Any]], Path], name: str
) -> None:
    kind, step, changes, expected = CASES[name]
    number = NUMBERS[step % 3]
    stopped = settings(tmp_path / "stopped", **changes)
    before = [signal.getsignal(each) for each in NUMBERS]
    with pytest.raises(
        Interrupted, match=rf"^stopped by {signal.Signals(number).name} after step \d+ of 1"
    ) as error:
        train_with(TASK, stopped, kind(step, lambda: signal.raise_signal(number)))
    assert error.value.exit_code == {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 138}[number]
    assert [signal.getsignal(each) for each in NUMBERS] == before
    run = Path(stopped.run)
    assert names(run) == expected
    assert str(error.value).endswith(f"resume from {max((run / e for e in expected), key=_step)}")
    resumed = TASK.train(stopped)
    assert names(resumed) == names(whole(changes))
    assert equal_runs(resumed, whole(changes))


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def test_signals_that_repeat_one_another_are_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun and srun pass on what their processes have got from the terminal or the scheduler."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    monkeypatch.setattr(signal, "signal", lambda number, handler: raised.append(handler))
    request = StopRequest()
    request.note(signal.SIGINT)
    clock[0] = 0.5
    request.note(signal.SIGTERM)
    assert (request.number, raised) == (signal.SIGINT, [])
    clock[0] = 5.0
    request.note(signal.SIGTERM)
    assert raised == [signal.SIG_DFL, signal.SIGTERM]


def test_a_second_signal_ends_the_process_at_once() -> None:
    child = os.fork()
    if child == 0:
        try:
            with deferred() as request:
                signal.raise_signal(signal.SIGTERM)
                request._since -= 5
                signal.raise_signal(signal.SIGTERM)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_outside_a_training_ends_the_work(number: int) -> None:
    with (
        pytest.raises(Interrupted, match=r"stopped by SIG.*; start the training again to resume"),
        raising(),
    ):
        signal.raise_signal(number)


def test_a_signal_that_arrives_while_handlers_are_put_back_ends_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def late() -> Iterator[None]:
        yield
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(cli, "raising", late)
    assert cli.main(["configs"]) == 130
    assert capsys.readouterr().err.startswith("floater: stopped by SIGINT")
