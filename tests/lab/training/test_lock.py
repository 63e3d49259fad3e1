"""One process at a time, on file systems with locks and without; a killed process locks nothing."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import SoftFileLock

from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.settings import dump
from floater.lab.training.lock import LOCK, MARKER, file_lock, locked

from .small_run import settings

MISSING = [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP]


def without_locks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Simulate a file system on which `flock` fails with an error number."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)


@contextmanager
def holder(folder: Path, prepare: Callable[[], object] = lambda: None) -> Iterator[int]:
    """Hold the lock of a directory in a process, which is killed at the end of the block."""
    ready, begun = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            prepare()
            with locked(folder):
                os.write(begun, b"1")
                signal.pause()
        finally:
            os._exit(1)
    try:
        os.close(begun)
        assert os.read(ready, 1) == b"1"
        yield child
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def refused(folder: Path, reason: str) -> None:
    with pytest.raises(DataError, match=reason), locked(folder):
        pass


@pytest.mark.parametrize("number", MISSING)
def test_without_locks_a_process_has_the_directory_until_it_is_killed(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_locks(monkeypatch, number)
    name = rf"process {{}} on {socket.gethostname()} since 20"
    with holder(tmp_path) as child:
        refused(tmp_path, rf"in use by {name.format(child)}.*remove \S+{LOCK}{MARKER}$")
    assert (tmp_path / (LOCK + MARKER)).exists(), "it was killed"
    with caplog.at_level(logging.WARNING), locked(tmp_path):
        # its content is that by which `filelock` recognises a dead holder
        assert SoftFileLock(tmp_path / (LOCK + MARKER)).is_lock_held_by_us
        refused(tmp_path, f"in use by {name.format(os.getpid())}")
    assert os.strerror(number) in caplog.text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", MISSING)
def test_without_locks_a_training_starts_again_after_it_is_killed(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_locks(monkeypatch, number)
    asked = settings(tmp_path / "run", max_steps=4)
    (tmp_path / "run.yaml").write_text(dump(asked))
    with holder(tmp_path / "run") as child:
        assert main(["train", str(tmp_path / "run.yaml")]) == 2
        assert f"is in use by process {child}" in capsys.readouterr().err
    assert main(["train", str(tmp_path / "run.yaml")]) == 0
    assert not [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(LOCK)]


def test_a_marker_of_another_machine_stays_and_its_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_locks(monkeypatch, errno.ENOLCK)
    marker = tmp_path / (LOCK + MARKER)
    marker.write_text("12\nanother-machine\n")
    refused(tmp_path, rf"process 12 on another-machine since 20.*remove {marker}$")
    marker.unlink()
    with locked(tmp_path):
        pass


def test_a_lock_and_a_marker_exclude_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the lock service of a file system fails and comes back."""
    with holder(tmp_path) as child, monkeypatch.context() as patch:
        without_locks(patch, errno.ENOLCK)
        refused(tmp_path, rf"may be in use by process {child} .*remove {tmp_path / LOCK}$")
    (tmp_path / LOCK).unlink()  # as it says
    with holder(tmp_path, lambda: without_locks(monkeypatch, errno.ENOLCK)) as child:
        refused(tmp_path, f"in use by process {child} on")
    with locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [None, errno.ENOSYS])
def test_processes_that_wait_have_the_lock_one_at_a_time(
    number: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them dies with the lock."""
    if number:
        without_locks(monkeypatch, number)
    children = []
    for index in range(4):
        if (child := os.fork()) == 0:
            code = 1
            try:
                for turn in range(5):
                    with file_lock(tmp_path / "lock", "the count", patience=None):
                        os.close(os.open(tmp_path / "inside", os.O_CREAT | os.O_EXCL))  # nobody else is
                        os.sched_yield()
                        (tmp_path / "inside").unlink()
                        if (index, turn) == (0, 3):
                            os.kill(os.getpid(), signal.SIGKILL)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [-signal.SIGKILL, 0, 0, 0]


def test_another_error_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match=LOCK) as error:
        locked(tmp_path).__enter__()
    assert (error.value.errno, error.value.filename) == (errno.EIO, str(tmp_path / LOCK))


@pytest.mark.parametrize("number", [None, errno.ENOSYS])
def test_a_lock_does_not_write_through_a_link(
    number: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if number:
        without_locks(monkeypatch, number)
    (tmp_path / "mine.txt").write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    for name in (LOCK, LOCK + MARKER):
        (run / name).symlink_to(tmp_path / "mine.txt")
        try:
            with locked(run):
                pass
        except (OSError, DataError) as error:
            assert name in str(error)  # noqa: PT017 (either is right: what matters is the target)
        (run / name).unlink(missing_ok=True)
        assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_lock_with_a_large_leftover_is_rewritten(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("x" * 999)
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text().startswith("{")
        assert (tmp_path / LOCK).read_text().endswith("}")
