"""A run that was stopped resumes on the data that it began with, or says what has changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.tasks import task
from floater.lab.training.run_data import DATA, RunData
from helpers import equal_runs, kill

from .small import settings, write_config, write_texts

TASK = task("language_modeling")
FEW = {"max_steps": 1, "eval_steps": 1, "save_steps": 1}


def write_lines(path: Path, *lines: str) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts and a run of them that was killed after its first checkpoint; read only."""
    folder = tmp_path_factory.mktemp("stopped")
    write_texts(folder)
    kill(TASK, settings(folder), step=6)
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the folder in another place."""
    copy = Path(shutil.copytree(stopped, tmp_path / "copy"))
    write_config(copy)
    return copy


def resume(folder: Path, **parts: Any) -> Path:
    return TASK.train(settings(folder, **parts))


def test_a_run_and_its_data_that_were_moved_resume_to_the_same_model(stopped: Path, folder: Path) -> None:
    """Its settings name the new places from then on."""
    moved = folder.rename(folder.with_name("moved"))
    shutil.copytree(stopped / "run", stopped / "whole")
    first = TASK.train(settings(stopped, "whole"))
    assert equal_runs(resume(moved), first)
    assert str(moved / "train.txt") in (moved / "run" / "config.yaml").read_text(encoding="utf-8")
    assert main(["evaluate", str(moved / "run"), "--source", str(moved / "valid.txt")]) == 0


REVERSED, HALVED, OTHER = (
    lambda lines: lines[::-1],
    lambda lines: lines[::2],
    lambda lines: ["other"],
)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train.txt", REVERSED, r"data\.train: \S+train\.txt has changed \(\d+ lines as before\)"),
        ("train.txt", HALVED, r"data\.train: \S+train\.txt has changed \(\d+ lines, now \d+\)"),
        ("valid.txt", OTHER, r"data\.valid: \S+valid\.txt has changed \(\d+ lines, now 1\)"),
        ("train.txt", None, r"data\.train: \S+train\.txt is missing"),
    ],
)
def test_a_stopped_run_does_not_resume_on_other_data(
    folder: Path, name: str, change: Callable[[list[str]], list[str]] | None, message: str
) -> None:
    lines = read_lines(folder / name)
    (folder / name).unlink()
    if change is not None:
        write_lines(folder / name, *change(lines))
    before = {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}
    with pytest.raises(DataError, match=message):
        resume(folder)
    assert {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()} == before


def test_the_vocabulary_of_another_run_is_refused(folder: Path) -> None:
    other = TASK.train(settings(folder, "other", data={"vocabulary_size": 291}, training=FEW))
    shutil.rmtree(folder / "run" / "vocabulary")
    kill(TASK, settings(folder), step=5)  # one that was removed is made again
    shutil.rmtree(folder / "run" / "vocabulary")
    shutil.copytree(other / "vocabulary", folder / "run" / "vocabulary")
    with pytest.raises(DataError, match=r"run/vocabulary is another vocabulary"):
        resume(folder)


def test_changed_data_can_be_accepted_which_is_recorded(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = read_lines(folder / "train.txt")
    write_lines(folder / "train.txt", *lines[::2])
    config = str(folder / "run.yaml")
    assert main(["train", config]) == 2
    assert "--accept-changed-data" in capsys.readouterr().err
    assert main(["train", config, "--accept-changed-data"]) == 0
    record = json.loads((folder / "run" / DATA).read_text(encoding="utf-8"))
    (accepted,) = record["accepted"]
    assert accepted["step"] == 4
    assert "train.txt has changed" in accepted["changes"][0]
    assert main(["train", config]) == 0
    assert "have changed" not in capsys.readouterr().err, "the accepted data are those of the run"

    write_lines(folder / "train.txt", "a third text")
    assert main(["train", config]) == 0  # nothing is left to train
    assert "its data have changed since: data.train: " in capsys.readouterr().err
    model = (folder / "run" / "model" / "model.safetensors").read_bytes()
    assert main(["train", config, "--steps", "14"]) == 2
    assert "train.txt has changed" in capsys.readouterr().err
    assert (folder / "run" / "model" / "model.safetensors").read_bytes() == model
    assert "max_steps: 12" in (folder / "run" / "config.yaml").read_text(encoding="utf-8")
    write_lines(folder / "train.txt", *lines[::2])
    assert main(["train", config, "--steps", "14"]) == 0


def test_a_run_without_a_record_resumes_and_says_so(
    stopped: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "run" / DATA).unlink()
    config = folder / "run" / "config.yaml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace(str(stopped), str(folder)), encoding="utf-8")
    write_lines(folder / "valid.txt", "nobody can know that it was another text")
    resume(folder)
    assert "run has no record of its data: that they are the same is not checked" in caplog.text
    record = json.loads((folder / "run" / DATA).read_text(encoding="utf-8"))
    assert record["accepted"] == [{"step": 4, "changes": ["there was no record of the data before"]}]


def test_a_record_that_cannot_be_read_is_named(folder: Path) -> None:
    for broken in ("{", "[]", '{"files": {"data.train": 1}, "examples": {}, "accepted": []}'):
        (folder / "run" / DATA).write_text(broken, encoding="utf-8")
        with pytest.raises(DataError, match=r"data\.json is not a record of data .*; remove it to resume"):
            resume(folder)


def test_data_that_change_while_they_are_read_are_refused(tmp_path: Path) -> None:
    write_texts(tmp_path)
    data = RunData(tmp_path / "run", settings(tmp_path))
    write_lines(tmp_path / "train.txt", "it is still being written")
    with pytest.raises(DataError, match=r"train\.txt has changed .* while the training read it"):
        data.check_examples(train=[], valid=[])
