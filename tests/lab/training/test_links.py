"""A run directory from elsewhere: what its links lead to is neither written nor removed."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from floater.lab.cli import main
from floater.lab.study.trial import MEASURED, _write
from floater.lab.tasks.measurement import Measurement
from floater.lab.training.checkpoints import checkpoints, remove, set_aside_damaged
from floater.lab.training.files import UNFINISHED, discard, save_whole, seal, write_json, write_whole
from floater.lab.training.lengthen import lengthen
from helpers import equal_runs, kill

from .small_run import TASK, settings

TEMPORARY = [
    UNFINISHED,
    f".config.yaml{UNFINISHED}",
    f".log.json{UNFINISHED}",
    f".result.json{UNFINISHED}",
    f".model{UNFINISHED}",
    f".vocabulary{UNFINISHED}",
]


@pytest.fixture(scope="module")
def began(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kill(TASK, settings(tmp_path_factory.mktemp("began") / "run"), 9)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TASK.train(settings(tmp_path_factory.mktemp("whole") / "run"))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A directory with files of the names that a training writes."""
    folder = tmp_path / "mine"
    for name in ("config.json", "model.safetensors", "checkpoint-12/optimizer.pt", "removed-checkpoint-4/a"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("target", ["a directory", "a file", "nothing"])
def test_a_resumed_run_does_not_write_through_links_under_temporary_names(
    target: str, began: Path, whole: Path, mine: Path, tmp_path: Path
) -> None:
    run, before = shutil.copytree(began, tmp_path / "run"), contents(mine)
    leads = {"a directory": mine, "a file": mine / "config.json", "nothing": mine / "new"}[target]
    for name in TEMPORARY:
        discard(run / name)
        (run / name).symlink_to(leads)
    shutil.rmtree(run / "vocabulary")
    assert equal_runs(TASK.train(settings(run)), whole)
    assert contents(mine) == before
    assert not (run / "model").is_symlink()
    assert not (run / "vocabulary").is_symlink()


def test_a_longer_training_removes_no_more_than_its_model(whole: Path, mine: Path, tmp_path: Path) -> None:
    run, before = shutil.copytree(whole, tmp_path / "run"), contents(mine)
    (run / f".model{UNFINISHED}").symlink_to(mine)
    longer, shorter = lengthen(settings(run), steps=16)
    TASK.train(longer, shorter=shorter)
    assert not (run / "model").is_symlink()
    assert contents(mine) == before


def test_a_checkpoint_that_is_a_link_is_removed_alone(mine: Path, tmp_path: Path) -> None:
    run, before = tmp_path / "run", contents(mine)
    run.mkdir()
    (run / UNFINISHED).symlink_to(mine)
    (run / "checkpoint-4").symlink_to(mine)
    remove(checkpoints(run))
    assert not checkpoints(run)
    (run / "checkpoint-8").symlink_to(mine)
    (run / "damaged-checkpoint-8").symlink_to(mine)
    shutil.copytree(mine, run / "checkpoint-4")
    seal(run / "checkpoint-4")
    assert len(set_aside_damaged(run)) == 1
    assert contents(mine) == before


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_a_file_is_written_beside_what_a_link_leads_to(kind: str, mine: Path, tmp_path: Path) -> None:
    hidden, before = tmp_path / f".note.txt{UNFINISHED}", contents(mine)
    for write in (lambda path: write_whole(path, "text"), lambda path: write_json(path, {})):
        if kind == "hard":
            hidden.hardlink_to(mine / "config.json")
        else:
            hidden.symlink_to(mine / "config.json")
        write(tmp_path / "note.txt")
        assert not hidden.exists()
    assert json.loads((tmp_path / "note.txt").read_text()) == {}
    assert contents(mine) == before


def test_scores_of_a_trial_are_written_beside_what_a_link_leads_to(mine: Path, tmp_path: Path) -> None:
    before = contents(mine)
    (tmp_path / MEASURED).mkdir()
    (tmp_path / MEASURED / ".test.npz").symlink_to(mine / "config.json")
    _write(tmp_path, "test", {}, Measurement(lengths=np.ones(1), statistics={}), 0.0)
    assert np.load(io.BytesIO((tmp_path / MEASURED / "test.npz").read_bytes()))["lengths"].tolist() == [1.0]
    assert contents(mine) == before


def test_a_directory_saved_whole_replaces_no_target(mine: Path, tmp_path: Path) -> None:
    class Part:
        def save_pretrained(self, folder: Path) -> None:
            folder.mkdir(exist_ok=True)
            (folder / "config.json").write_text("new")

    before = contents(mine)
    (tmp_path / f".model{UNFINISHED}").symlink_to(mine)
    save_whole(tmp_path / "model", Part())
    assert (tmp_path / "model/config.json").read_text() == "new"
    assert contents(mine) == before


@pytest.mark.parametrize("name", ["plots", "plots/vectors.png"])
def test_a_figure_is_not_written_through_a_link(
    name: str, whole: Path, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, before = shutil.copytree(whole, tmp_path / "run"), contents(mine)
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(mine if name == "plots" else mine / "config.json")
    assert main(["plot", str(run), "vectors"]) == 2
    assert "plots/vectors.png is a link out of the run; name another file with --output" in (
        capsys.readouterr().err
    )
    assert contents(mine) == before
