"""The directory of a run of any task: settings, vocabulary, log, checkpoints, final model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from floater.errors import DataError
from floater.lab.settings import dump, make, read
from floater.lab.training.checkpoints import checkpoints, remove
from floater.lab.training.files import UNFINISHED, save_whole, write_whole
from floater.lab.training.lock import LOCK
from floater.lab.training.run_data import VOCABULARY as VOCABULARY
from floater.lab.training.run_data import RunData

SETTINGS, MODEL, LOG, RESULT = "config.yaml", "model", "log.json", "result.json"
BEST = "best"
"""Directory in that of a run with the model of the best validation; see `TrainingSettings.keep_best`."""
ENCODED = "encoded"
"""Directory in that of a run with its examples, if they are large; see `floater.lab.tasks.stored`."""
LONGEST = "longest"
"""Key in `RESULT` of the length of the longest training example, in tokens or the unit of the lengths."""
RunPath = str | os.PathLike[str]


@dataclass(frozen=True)
class RunWithSettings(os.PathLike[str]):
    """A run directory with its settings, so that functions of the directory need not read them again.

    Args:
        path: path of the directory.
        settings: settings of the run.

    Example:
        >>> Path(RunWithSettings(Path("runs"), None), "mine").parts
        ('runs', 'mine')
    """

    path: Path
    settings: Any

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__


def find_run(settings: Any, *, accept_changed_data: bool = False) -> Path:
    """Return the directory of a run after checking its settings; nothing is written.

    Paths of files may differ from those of the run if the files hold the same.

    Args:
        settings: settings of the run.
        accept_changed_data: whether other files may hold something else.

    Returns:
        A directory that is empty, does not exist yet, or contains a run with these settings.

    Raises:
        DataError: if the directory contains something else, a run with other settings, or one that began
            with other files.
        SettingsError: if the settings in the directory cannot be read.
    """
    run = Path(settings.run)
    if run.exists() and not run.is_dir():
        raise DataError(f"{run} is a file; a run needs a directory")
    if (run / SETTINGS).is_file():
        tree = read(run / SETTINGS)
        if (task := tree.get("task", settings.task)) != settings.task:
            raise DataError(f"{run} holds a run of task {task!r}, not {settings.task!r}")
        before = make(type(settings), tree, str(run / SETTINGS))
        if any(differences(before, settings)):
            data = RunData(run, settings, accept=accept_changed_data)
            if changes := list(differences(before, settings, data.names)):
                saved = (run / MODEL).is_dir() or checkpoints(run)
                hint = "" if saved else "; no step of a training is saved there: remove it to begin again"
                raise DataError(f"{run} holds a run with other settings: {'; '.join(changes)}{hint}")
            data.check()
    elif run.is_dir() and any(
        not path.name.endswith(UNFINISHED) and not path.name.startswith(LOCK) and path.name != ENCODED
        for path in run.iterdir()
    ):
        raise DataError(f"{run} is not empty and holds no run (no {SETTINGS}); choose another directory")
    return run


def begin_run(run: Path, settings: Any, tokenizer: Any, record: Callable[[], None] = lambda: None) -> None:
    """Write settings and vocabulary into the directory of a run, unless they exist.

    Args:
        run: directory of the run.
        settings: settings of the run; those in the directory are replaced if they name the files otherwise.
        tokenizer: vocabulary of the run.
        record: function that writes the record of the data, before the vocabulary that is made of them, and
            again with it.
    """
    run.mkdir(parents=True, exist_ok=True)
    text, file = dump(settings), run / SETTINGS
    if not file.is_file() or any(differences(make(type(settings), read(file), str(file)), settings)):
        write_whole(file, text)
    record()
    if not (run / VOCABULARY).is_dir():
        save_whole(run / VOCABULARY, tokenizer)
        record()


def supersede_run(run: Path, settings: Any, tokenizer: Any, record: Callable[[], None]) -> None:
    """Replace a run by its longer training, whose first checkpoint is written, and remove its final model.

    Args:
        run: directory of the run.
        settings: settings of the longer training.
        tokenizer: vocabulary of the run.
        record: function that writes the record of the data.
    """
    if (run / MODEL).is_dir():
        remove([run / MODEL])
    begin_run(run, settings, tokenizer, record)


def inside(folder: Path, *names: str) -> Path:
    """Return the first of the named directories in a folder, or the folder itself."""
    return next((folder / name for name in names if (folder / name).is_dir()), folder)


def _plain(settings: Any) -> dict[str, Any]:
    """Return settings as JSON values, without the run directory, which has many equivalent names."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return values | {"run": None}


def differences(old: Any, new: Any, ignored: Collection[str] = ()) -> Iterator[str]:
    """List the keys in which two settings differ, with both values; directories are not compared."""
    return _differences(_plain(old), _plain(new), ignored)


def _differences(
    old: dict[str, Any], new: dict[str, Any], ignored: Collection[str], prefix: str = ""
) -> Iterator[str]:
    for name in old | new:
        there, here = old.get(name), new.get(name)
        if isinstance(there, dict) and isinstance(here, dict):
            yield from _differences(there, here, ignored, f"{prefix}{name}.")
        elif there != here and f"{prefix}{name}" not in ignored:
            yield f"{prefix}{name} is {json.dumps(there)} there and {json.dumps(here)} here"
