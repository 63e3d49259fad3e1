"""A finished run that is trained for longer: it is left as it was until there is more than it had."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from floater.lab.cli import main
from floater.lab.settings import dump
from floater.lab.training import checkpoints
from floater.lab.training.files import seal, write_whole
from floater.lab.training.lengthen import lengthen
from floater.lab.training.lock import locked
from helpers import At, equal_runs, train_with

from .small_run import TASK, settings


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 12 steps; read only."""
    return TASK.train(settings(tmp_path_factory.mktemp("whole") / "run"))


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, and its configuration beside it."""
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    write_whole(tmp_path / "run.yaml", dump(settings(run)))
    return run


@pytest.fixture(scope="module")
def longer(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run after 20 steps; read only."""
    return train_longer(Path(shutil.copytree(whole, tmp_path_factory.mktemp("longer") / "run")))


def train_longer(run: Path) -> Path:
    asked, shorter = lengthen(settings(run), steps=20)
    return TASK.train(asked, shorter=shorter)


def files(run: Path) -> dict[str, bytes]:
    """Return the settings, data, result, log and final model of the run."""
    names = ("config.yaml", "data.json", "result.json", "log.json", "model/*", "vocabulary/*")
    return {str(path): path.read_bytes() for name in names for path in run.glob(name)}


def steps(run: Path) -> int:
    return int(yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["training"]["max_steps"])


def two_processes(run: Path, patch: pytest.MonkeyPatch) -> None:
    for checkpoint in checkpoints(run):
        shutil.copy(checkpoint / "rng_state.pth", checkpoint / "rng_state_0.pth")
        (checkpoint / "rng_state.pth").rename(checkpoint / "rng_state_1.pth")
        seal(checkpoint)


def damaged(run: Path, patch: pytest.MonkeyPatch) -> None:
    for checkpoint in checkpoints(run):
        (checkpoint / "optimizer.pt").write_bytes(b"")


def without_a_state(run: Path, patch: pytest.MonkeyPatch) -> None:
    for checkpoint in checkpoints(run):
        (checkpoint / "scheduler.pt").unlink()
        seal(checkpoint)


def no_memory(run: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("floater.lab.training.needs._memory", lambda: (1, "this machine"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (two_processes, "is of 2 processes, and 1 would read other batches"),
        (damaged, "no checkpoint of .* is whole"),
        (without_a_state, "has no scheduler.pt"),
        (no_memory, "and this machine has"),
    ],
)
def test_a_longer_training_that_is_refused_leaves_the_run_as_it_was(
    change: Callable[..., None],
    why: str,
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change(run, monkeypatch)
    before = files(run)
    assert main(["train", str(run.parent / "run.yaml"), "--steps", "20"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.search(why, said)
    assert files(run) == before


def test_a_longer_training_of_a_run_in_use_leaves_it_as_it_was(run: Path) -> None:
    before = files(run)
    with locked(run):
        assert main(["train", str(run.parent / "run.yaml"), "--steps", "20"]) == 2
        assert files(run) == before


class Crash(Exception):
    pass


def crash_at(step: int, run: Path) -> None:
    def crash() -> None:
        raise Crash

    asked, shorter = lengthen(settings(run), steps=20)
    with pytest.raises(Crash):
        train_with(TASK, asked, At(step, crash), shorter=shorter)


def test_a_longer_training_that_ends_before_a_checkpoint_leaves_the_finished_run(
    run: Path, longer: Path
) -> None:
    before = {name: value for name, value in files(run).items() if not name.endswith("log.json")}
    crash_at(15, run)
    assert before.items() <= files(run).items()
    assert TASK.train(settings(run)) == run, "it is finished"
    assert equal_runs(train_longer(run), longer)


def test_a_longer_training_goes_on_from_its_checkpoint(run: Path, longer: Path) -> None:
    crash_at(18, run)
    assert not (run / "model").exists(), "a model of fewer steps is not that of the run"
    assert steps(run) == 20
    assert equal_runs(train_longer(run), longer)
    assert steps(run) == 20
