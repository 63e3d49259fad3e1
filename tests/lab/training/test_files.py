"""Files are written completely or not at all, and an error names the file."""

import errno
import os
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from floater.errors import DataError
from floater.lab.training.checkpoints import set_aside_damaged
from floater.lab.training.files import save_whole, sealed, write_whole


def test_a_full_disk_is_an_error_of_the_file_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "note.txt"
    write_whole(path, "before")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_whole(path, "after")
    assert (caught.value.filename, path.read_text()) == (str(path), "before")


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_the_umask_decides_who_reads_a_model(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        save_whole(tmp_path / "model", SimpleNamespace(save_pretrained=_weights))
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert modes == {0o666 & ~umask}


def _forbid_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to open weights, as their permissions do for all users but root."""
    read = Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "model.safetensors":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)


def test_a_model_that_cannot_be_read_is_not_called_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    save_whole(folder, SimpleNamespace(save_pretrained=_weights))
    _forbid_weights(monkeypatch)
    with pytest.raises(DataError, match=f"^{folder}/model.safetensors cannot be read: Permission denied$"):
        sealed(folder)


def test_a_checkpoint_that_cannot_be_read_is_not_set_aside_for_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step, save in ((10, _vocabulary), (20, _weights)):
        save_whole(tmp_path / f"checkpoint-{step}", SimpleNamespace(save_pretrained=save))
    _forbid_weights(monkeypatch)
    with pytest.raises(DataError, match=r"checkpoint-20/.* cannot be read: Permission denied"):
        set_aside_damaged(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-20"]


def _weights(folder: Path) -> None:
    folder.mkdir()
    save_file({"a": torch.zeros(999)}, folder / "model.safetensors")


def _vocabulary(folder: Path) -> None:
    folder.mkdir()
    words = {f"word{number}": number for number in range(999)}
    Tokenizer(models.WordLevel(words, unk_token="word0")).save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("save", [_weights, _vocabulary])
def test_a_model_that_does_not_fit_on_the_disk_is_a_line_and_leaves_nothing(
    tmp_path: Path, save: Any
) -> None:
    """Each library has an error of its own for it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(
            DataError, match=r"model cannot be written \(.*File too large.*\); make room"
        ) as caught:
            save_whole(tmp_path / "model", SimpleNamespace(save_pretrained=save))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(str(caught.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "expected", "match"),
    [
        (PermissionError(13, "Permission denied"), DataError, r"cannot be written \(Permission denied\)$"),
        (Exception("a defect"), Exception, "^a defect$"),
    ],
)
def test_an_error_that_is_not_of_a_full_disk_does_not_ask_for_room(tmp_path, error, expected, match) -> None:
    def save(folder: Path) -> None:
        raise error

    with pytest.raises(expected, match=match):
        save_whole(tmp_path / "model", SimpleNamespace(save_pretrained=save))
