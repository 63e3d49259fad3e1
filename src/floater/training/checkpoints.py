"""Checkpoint directories that are whole or not there."""

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

_HIDDEN = ".unfinished"
_NAME = re.compile(r"checkpoint-(\d+)")


def checkpoints(run: Path | str) -> list[Path]:
    """List the checkpoints of a run by step, the first step first.

    Args:
        run: directory of the run; it need not exist.

    Returns:
        The directories ``checkpoint-<step>`` in it.

    Example:
        >>> checkpoints("no-such-run")
        []
    """
    run = Path(run)
    if not run.is_dir():
        return []
    found = {path: _NAME.fullmatch(path.name) for path in run.iterdir() if path.is_dir()}
    steps = {path: int(match[1]) for path, match in found.items() if match}
    return sorted(steps, key=steps.__getitem__)


def last_checkpoint(run: Path | str) -> Path | None:
    """Return the checkpoint of a run's last saved step, or None if there is none.

    Args:
        run: directory of the run; it need not exist.

    Example:
        >>> last_checkpoint("no-such-run") is None
        True
    """
    return next(reversed(checkpoints(run)), None)


def staging(checkpoint: Path) -> Path:
    """Return the hidden directory that a checkpoint is written in until it is whole."""
    return checkpoint.parent / _HIDDEN / checkpoint.name


def publish(checkpoint: Path) -> None:
    """Move a checkpoint from its staging directory to its own name, in one step.

    Its files are on the disk before they get the name. A checkpoint of this name that is already
    there is replaced.

    Args:
        checkpoint: the directory ``checkpoint-<step>``, written in ``staging(checkpoint)``.
    """
    written = staging(checkpoint)
    for directory, _, files in os.walk(written):
        for file in files:
            _to_disk(Path(directory, file))
        _to_disk(Path(directory))
    remove([checkpoint] if checkpoint.exists() else [])
    os.replace(written, checkpoint)
    _to_disk(checkpoint.parent)


def remove(paths: Iterable[Path]) -> None:
    """Remove checkpoints so that each is whole until it is gone.

    Args:
        paths: the directories ``checkpoint-<step>``.
    """
    for path in paths:
        hidden = path.parent / _HIDDEN / f"removed-{path.name}"
        hidden.parent.mkdir(exist_ok=True)
        shutil.rmtree(hidden, ignore_errors=True)
        os.replace(path, hidden)
        shutil.rmtree(hidden)


def clear_staging(run: Path | str) -> None:
    """Remove what an interrupted process left unfinished in a run.

    Args:
        run: directory of the run; it need not exist.
    """
    hidden = Path(run) / _HIDDEN
    if hidden.exists():
        shutil.rmtree(hidden)


def keep_last(run: Path | str, count: int, *, always: Iterable[Path] = ()) -> None:
    """Remove the oldest checkpoints of a run until a number of them is left.

    Args:
        run: directory of the run.
        count: how many to keep, at least 1; those in ``always`` are among them.
        always: checkpoints to keep, whatever their step.

    Raises:
        ValueError: ``count`` is below 1.
    """
    if count < 1:
        raise ValueError(f"count of checkpoints to keep is {count}; it must be at least 1")
    there = checkpoints(run)
    kept = {Path(path).resolve() for path in always}
    old = [path for path in there[:-1] if path.resolve() not in kept]
    remove(old[: max(0, len(there) - count)])


def _to_disk(path: Path) -> None:
    """Wait until a file or a directory's list of names is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
