"""Files are written completely or not at all, and an error names the file."""

import errno
import os
from pathlib import Path

import pytest

from floater.lab.training.files import write_whole


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
