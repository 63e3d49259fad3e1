"""Checkpoint directories that are written and removed atomically."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from floater.errors import DataError
from floater.lab.training.files import UNFINISHED, damage, discard, seal, sync

DAMAGED = "damaged-"
"""Prefix of the names of incomplete or changed checkpoints, which are not used."""
_NAME = re.compile(r"checkpoint-(\d+)")
_INTERRUPTED = re.compile(r"interrupted-(\d+)")


def checkpoints(run: Path | str) -> list[Path]:
    """List the checkpoints of a run by step, the first step first.

    Args:
        run: directory of the run; it need not exist.

    Returns:
        The directories ``checkpoint-<step>`` in the directory of the run.

    Example:
        >>> checkpoints("no-such-run")
        []
    """
    return _listed(Path(run), _NAME)


def interrupted_checkpoints(run: Path | str) -> list[Path]:
    """List the checkpoints that a run wrote on a signal, between those of its schedule, by step.

    Training resumes from them, but they are not used for the final model. They are removed at the next
    checkpoint of the schedule, so an interrupted run ends with the same checkpoints as an uninterrupted one.

    Args:
        run: directory of the run; it need not exist.

    Returns:
        The directories ``interrupted-<step>`` in the directory of the run.

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
    """Return the hidden directory in which a checkpoint is written until it is complete."""
    return checkpoint.parent / UNFINISHED / checkpoint.name


def publish(written: Path, checkpoint: Path) -> None:
    """Rename the staging directory of a checkpoint to its final name, in one step.

    The files and then the manifest are on the disk before the directory is renamed. An existing checkpoint
    of this name is replaced.

    Args:
        written: staging directory, in which the checkpoint was written.
        checkpoint: final directory of the checkpoint, with the same parent as the staging directory.
    """
    seal(written)
    remove([checkpoint] if checkpoint.exists() else [])
    os.replace(written, checkpoint)
    _remove_empty(written.parent)
    sync(checkpoint.parent)


def set_aside_damaged(run: Path | str) -> dict[Path, str]:
    """Rename the damaged checkpoints of a run, so that none of them is used, if another one is whole.

    Args:
        run: directory of the run; it need not exist.

    Returns:
        A description of the damage of each checkpoint, by its former path. The new names begin with
        "damaged-".

    Raises:
        DataError: if there are checkpoints, but all of them are damaged, or a file cannot be read; none is
            renamed then.

    Example:
        >>> set_aside_damaged("no-such-run")
        {}
    """
    paths = (*checkpoints(run), *interrupted_checkpoints(run))
    damaged = {path: reason for path in paths if (reason := damage(path)) is not None}
    unusable = sorted([*damaged, *damaged_checkpoints(run)], key=step_of)
    if unusable and len(damaged) == len(paths):
        last = unusable[-1]
        raise DataError(
            f"no checkpoint of {run} is whole: {last}: {damaged.get(last) or damage(last) or 'damaged'}; "
            f"remove {', '.join(path.name for path in unusable)} there to train from the start"
        )
    for path in damaged:
        aside = path.with_name(DAMAGED + path.name)
        discard(aside)
        os.replace(path, aside)
    return damaged


def damaged_checkpoints(run: Path | str) -> list[Path]:
    """List the checkpoints that `set_aside_damaged` renamed, by step.

    Example:
        >>> damaged_checkpoints("no-such-run")
        []
    """
    return _listed(Path(run), re.compile(rf"{DAMAGED}\w+-(\d+)"))


def remove(paths: Iterable[Path]) -> None:
    """Remove directories of a run atomically: each is complete under its name until the name is gone.

    Args:
        paths: directories ``checkpoint-<step>``, or that of the final model.
    """
    for path in paths:
        hidden = path.parent / UNFINISHED / f"removed-{path.name}"
        if hidden.parent.is_symlink():
            discard(hidden.parent)
        hidden.parent.mkdir(exist_ok=True)
        discard(hidden)
        os.replace(path, hidden)
        discard(hidden)
        _remove_empty(hidden.parent)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # it is not empty
        folder.rmdir()


def clear_staging(run: Path | str) -> None:
    """Remove the unfinished checkpoints that an interrupted process left in a run.

    Args:
        run: directory of the run; it need not exist.
    """
    discard(Path(run) / UNFINISHED)


def keep_last(run: Path | str, count: int, *, always: Iterable[Path] = ()) -> None:
    """Remove the oldest checkpoints of a run until a given number of them is left.

    Args:
        run: directory of the run.
        count: number of checkpoints to keep, at least 1, including those in ``always``.
        always: checkpoints to keep regardless of their steps.

    Raises:
        ValueError: ``count`` is below 1.
    """
    if count < 1:
        raise ValueError(f"count of checkpoints to keep is {count}; it must be at least 1")
    present = checkpoints(run)
    kept = {Path(path).resolve() for path in always}
    old = [path for path in present[:-1] if path.resolve() not in kept]
    remove(old[: max(0, len(present) - count)])


def _listed(run: Path, name: re.Pattern[str]) -> list[Path]:
    if not run.is_dir():
        return []
    return sorted(
        (path for path in run.iterdir() if name.fullmatch(path.name) and path.is_dir()), key=step_of
    )
