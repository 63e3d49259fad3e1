"""Checkpoint directories that are whole or not there."""

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from floater.training.files import UNFINISHED, damage, seal, sync

DAMAGED = "damaged-"
"""Prefix of the names of incomplete checkpoints, which are not used."""
_NAME = re.compile(r"checkpoint-(\d+)")
_INTERRUPTED = re.compile(r"interrupted-(\d+)")


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
    return _listed(Path(run), _NAME)


def interrupted_checkpoints(run: Path | str) -> list[Path]:
    """List the checkpoints that signals had a run write between those of its schedule, by step.

    Training resumes from them, but no final model is made of them, and they are removed at the next
    checkpoint of the schedule: a run that was stopped ends with the checkpoints of one that was not.

    Args:
        run: directory of the run; it need not exist.

    Returns:
        The directories ``interrupted-<step>`` in it.

    Example:
        >>> interrupted_checkpoints("no-such-run")
        []
    """
    return _listed(Path(run), _INTERRUPTED)


def last_checkpoint(run: Path | str) -> Path | None:
    """Return the checkpoint of a run's last saved step, or None if there is none.

    Args:
        run: directory of the run; it need not exist.

    Returns:
        One of `checkpoints` or `interrupted_checkpoints`, not verified.

    Example:
        >>> last_checkpoint("no-such-run") is None
        True
    """
    return max([*checkpoints(run), *interrupted_checkpoints(run)], key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    """Return the step after which a checkpoint was written, from its name.

    Example:
        >>> step_of(Path("run/checkpoint-12"))
        12
    """
    return int(checkpoint.name.rpartition("-")[2])


def staging(checkpoint: Path) -> Path:
    """Return the hidden directory that a checkpoint is written in until it is whole."""
    return checkpoint.parent / UNFINISHED / checkpoint.name


def publish(written: Path, checkpoint: Path) -> None:
    """Move a checkpoint from its staging directory to its own name, in one step.

    Its files and then its manifest are on the disk before they get the name. A checkpoint of this name that
    is already there is replaced.

    Args:
        written: the directory that it was written in.
        checkpoint: the directory that it becomes, beside that of the staging.
    """
    seal(written)
    remove([checkpoint] if checkpoint.exists() else [])
    os.replace(written, checkpoint)
    sync(checkpoint.parent)


def set_aside_damaged(run: Path | str) -> dict[Path, str]:
    """Rename the checkpoints of a run that are not whole, so that none of them is used.

    Args:
        run: directory of the run; it need not exist.

    Returns:
        What is wrong with each, by its former path; its new name begins with "damaged-".

    Example:
        >>> set_aside_damaged("no-such-run")
        {}
    """
    found = {path: damage(path) for path in (*checkpoints(run), *interrupted_checkpoints(run))}
    broken = {path: reason for path, reason in found.items() if reason is not None}
    for path in broken:
        aside = path.with_name(DAMAGED + path.name)
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(path, aside)
    return broken


def damaged_checkpoints(run: Path | str) -> list[Path]:
    """List the checkpoints that `set_aside_damaged` renamed, by step.

    Example:
        >>> damaged_checkpoints("no-such-run")
        []
    """
    return _listed(Path(run), re.compile(rf"{DAMAGED}\w+-(\d+)"))


def remove(paths: Iterable[Path]) -> None:
    """Remove checkpoints so that each is whole until it is gone.

    Args:
        paths: the directories ``checkpoint-<step>``.
    """
    for path in paths:
        hidden = path.parent / UNFINISHED / f"removed-{path.name}"
        hidden.parent.mkdir(exist_ok=True)
        shutil.rmtree(hidden, ignore_errors=True)
        os.replace(path, hidden)
        shutil.rmtree(hidden)


def clear_staging(run: Path | str) -> None:
    """Remove what an interrupted process left unfinished in a run.

    Args:
        run: directory of the run; it need not exist.
    """
    hidden = Path(run) / UNFINISHED
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


def _listed(run: Path, name: re.Pattern[str]) -> list[Path]:
    if not run.is_dir():
        return []
    return sorted(
        (path for path in run.iterdir() if name.fullmatch(path.name) and path.is_dir()), key=step_of
    )
