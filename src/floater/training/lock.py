"""A lock that admits one process at a time to a directory."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from floater.errors import DataError

LOCK = ".lock"
_PATIENCE = 1.0  # seconds: a process that has just been killed may still be ending


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a directory against other processes until the end of the block.

    The lock belongs to the operating system, which releases it when the process ends for any reason. On a
    file system without such locks, a file that names the process serves instead.

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
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    lock = FileLock(path)
    try:
        try:
            lock.acquire(timeout=_PATIENCE)
        except Timeout:
            raise DataError(f"{folder} is in use by {_holder(path)}; wait until it ends") from None
        try:
            with suppress(OSError):  # a full disk is reported when the run's own files are written
                path.write_text(_self(), encoding="utf-8")
            yield
        finally:
            # unlink before the release: no other process may lock a file that is then removed
            path.unlink(missing_ok=True)
            lock.release()
    finally:
        with suppress(OSError):  # the directory is not empty, or does not exist any more
            for place in made:
                place.rmdir()


def _self() -> str:
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})


def _holder(path: Path) -> str:
    """Describe the process that owns a lock."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return f"process {found['pid']} on {found['host']} since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
