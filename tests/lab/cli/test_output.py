"""Files that commands write."""

import errno
import os
import resource
import threading
from pathlib import Path

import pytest

from floater.errors import DataError
from floater.lab.cli.output import check_writable, write_lines


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "out.de"
    write_lines(["Spanien", "", "Köln"], str(file))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(OSError, match=rf"File too large: '{file}'"):
            write_lines(["a" * 2000], str(file))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [*tmp_path.iterdir()] == [file]
    assert file.read_bytes() == "Spanien\n\nKöln\n".encode()


def test_devices_pipes_and_links_are_written_to(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="/dev/full") as full:
        write_lines(["a"], "/dev/full")
    assert full.value.errno == errno.ENOSPC

    pipe, link, file = (tmp_path / name for name in ("pipe", "link", "file"))
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_lines, args=(["a"], str(pipe)))
    writer.start()
    assert pipe.read_text() == "a\n"
    writer.join()
    link.symlink_to(file)
    write_lines(["b"], str(link))
    assert link.is_symlink()
    assert file.read_text() == "b\n"


def test_standard_output_that_is_a_file_goes_on_after_the_lines(tmp_path: Path) -> None:
    """As of `floater evaluate --output /dev/stdout > FILE`: the file is not replaced."""
    with (tmp_path / "out").open("w") as file:
        inode = os.fstat(file.fileno()).st_ino
        write_lines(["a"], f"/proc/self/fd/{file.fileno()}")
    assert (tmp_path / "out").stat().st_ino == inode
    assert (tmp_path / "out").read_text() == "a\n"


def test_a_link_to_a_file_that_is_still_to_be_written_stays(tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "elsewhere" / "file"
    link.symlink_to(file)
    with pytest.raises(FileNotFoundError, match=r"no such directory: '.*elsewhere'"):
        check_writable(str(link))
    file.parent.mkdir()
    check_writable(str(link))
    assert link.is_symlink()
    assert not file.exists()
    write_lines(["a"], str(link))
    assert file.read_text() == "a\n"


def test_a_dash_is_no_name_of_an_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tools mean standard output by it; here a file of that name was written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"name /dev/stdout for standard output, or \./- for a file"):
        check_writable("-")
    check_writable("./-")
