"""A lock that admits one process at a time to a directory or a file."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path

from filelock import SoftFileLock, Timeout

from floater.errors import DataError

LOCK = ".lock"
MARKER = ".marker"
"""Suffix of the file that replaces a lock of the operating system where the file system has none."""
logger = logging.getLogger(__name__)
_PATIENCE = 1.0  # seconds: a process that has just been killed may still be ending
_POLL = 0.05
_HELD = (errno.EAGAIN, errno.EACCES)
_MISSING = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)
"""Errors of `flock` on a file system without locks, as Lustre, NFS and FUSE may be mounted."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a directory against other processes until the end of the block.

    Args:
        folder: the directory. It is created if it does not exist, and a created directory that is still
            empty at the end is removed.

    Raises:
        DataError: if another process has locked the directory; the message names the process.
        OSError: if the directory cannot be written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp(), "run")
        >>> with locked(folder):
        ...     (folder / LOCK).exists()
        True
        >>> folder.exists()
        False
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with file_lock(folder / LOCK, str(folder)):
            yield
    finally:
        with suppress(OSError):  # the directory is not empty, or does not exist any more
            for path in created:
                path.rmdir()


@contextmanager
def file_lock(path: Path, what: str, patience: float | None = _PATIENCE) -> Iterator[None]:
    """Hold a lock file until the end of the block.

    The lock belongs to the operating system, which releases it when the process ends for any reason. On a
    file system without such locks, a marker beside the file serves instead. The next process on the same
    machine removes the marker of a process that was killed; another machine cannot tell if it still runs.

    Args:
        path: lock file, which exists only while it is held or after its holder was killed.
        what: name of what is locked, for messages.
        patience: seconds to wait for another process; None waits until it ends.

    Raises:
        DataError: if another process holds the lock; the message names the process.
        OSError: if the lock file cannot be written.
    """
    handle = missing = None
    try:
        handle = _locked_file(path, patience)
    except OSError as error:
        if error.errno not in _MISSING:
            raise OSError(error.errno, error.strerror, str(path)) from error
        missing = error
    if missing is not None:
        with _marked(path, what, patience, missing):
            yield
        return
    if handle is None:
        raise DataError(f"{what} is in use by {_holder(path)}; wait until it ends")
    try:
        with suppress(OSError):  # a full disk is reported when the run's own files are written
            os.truncate(handle, 0)
            os.pwrite(handle, _self().encode(), 0)
        marker = path.with_name(path.name + MARKER)
        # a marker is there if `flock` failed for another process
        with _soft(marker, what, patience) if marker.exists() else nullcontext():
            yield
    finally:
        # unlink before the release: no other process may lock a file that is then removed
        path.unlink(missing_ok=True)
        os.close(handle)


def _locked_file(path: Path, patience: float | None) -> int | None:
    """Return the handle of a file that this process has locked, or None if another one keeps it locked."""
    deadline = None if patience is None else time.monotonic() + patience
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        locked = False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # the process that held it may have removed the file after it was opened here
            locked = os.fstat(handle).st_nlink > 0
            if locked:
                return handle
        except OSError as error:
            if error.errno not in _HELD:
                raise
            if deadline is not None and time.monotonic() >= deadline:
                return None
            time.sleep(_POLL)
        finally:
            if not locked:
                os.close(handle)


@contextmanager
def _marked(path: Path, what: str, patience: float | None, missing: OSError) -> Iterator[None]:
    """Hold the marker of a lock file, on which `flock` failed."""
    marker = path.with_name(path.name + MARKER)
    with _soft(marker, what, patience):
        # Only a process whose `flock` succeeded writes into the file, perhaps before `flock` began to fail.
        if path.is_file() and path.stat().st_size:
            raise DataError(
                f"{what} cannot be locked ({missing.strerror}), and may be in use by {_holder(path)}; if it "
                f"has ended, remove {path}"
            )
        logger.warning(
            "%s is on a file system without locks (%s); %s serves instead",
            what,
            missing.strerror,
            marker.name,
        )
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def _soft(marker: Path, what: str, patience: float | None) -> Iterator[None]:
    """Hold a marker, whose content is that of `filelock` alone: it recognises a dead holder by it."""
    lock = SoftFileLock(marker)
    try:
        lock.acquire(timeout=-1 if patience is None else patience)
    except Timeout:
        raise DataError(
            f"{what} is in use by {_marker_holder(marker)}; wait until it ends or, if it was killed, remove "
            f"{marker}"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _self() -> str:
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})


def _holder(path: Path) -> str:
    """Describe the process that owns a lock."""
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _marker_holder(marker: Path) -> str:
    """Describe the process that owns a marker: its number and machine are the first lines."""
    try:
        pid, host, *_ = marker.read_text(encoding="utf-8").splitlines()
        since = datetime.fromtimestamp(marker.stat().st_mtime).astimezone().isoformat(" ", "seconds")
    except (OSError, ValueError):
        return "another process"
    return f"process {pid} on {host.partition('?')[0]} since {since}"
