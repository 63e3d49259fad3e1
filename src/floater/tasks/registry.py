"""The tasks by their names: what `floater train` and `floater evaluate` need to know of each."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from floater.settings import SettingsError, peek
from floater.tasks.run import SETTINGS
from floater.tasks.text import DataError

TASKS = (
    "translation",
    "language_modeling",
    "tagging",
    "masked_lm",
    "glue",
    "squad",
    "race",
    "events",
    "documents",
    "generated",
)
DEFAULT = "translation"


class Task(Protocol):
    """The module `floater.tasks.<name>.command` of a task.

    It may have three functions for studies: `check(settings)` and `check_test(settings, **test)` refuse what
    would fail before anything is trained, and `measure(run, **test)` scores a run's final model example by
    example (`floater.tasks.measurement`); with it goes `lengths(settings)`, what the examples' lengths count.

    Attributes:
        Settings: the dataclass of its configuration.
        OPTIONS: which options of `floater evaluate` it takes besides run and source, and whether it needs
            them; "source" where it needs none, False.
    """

    Settings: type[Any]
    OPTIONS: dict[str, bool]

    def train(self, settings: Any) -> Path: ...

    def evaluate(self, run: str, source: Any, **options: Any) -> tuple[str, list[str] | None]:
        """What to print, and the lines to write to a file, if the task has any."""
        ...


def find(name: Any, origin: str) -> Task:
    """A task by its name.

    Args:
        name: one of `TASKS`.
        origin: where the name stands, for the message.

    Raises:
        SettingsError: if there is no such task; it names the nearest one.

    Example:
        >>> find("translate", "mine.yaml")
        Traceback (most recent call last):
        floater.settings.SettingsError: mine.yaml: unknown task 'translate'; did you mean 'translation'?
    """
    if name not in TASKS:
        near = difflib.get_close_matches(str(name), TASKS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(TASKS)}"
        raise SettingsError(f"{origin}: unknown task {name!r}; {hint}")
    return cast(Task, importlib.import_module(f"floater.tasks.{name}.command"))


def of_config(path: str | Path, overrides: Sequence[str] = ()) -> Task:
    """The task that a configuration is for.

    Raises:
        SettingsError: if the file cannot be read or names no task.
    """
    return find(peek(path, "task", DEFAULT, overrides), str(path))


def name_of_run(run: str | Path) -> str:
    """The task of a run directory; that of translation for a saved model, which does not say.

    Raises:
        DataError: if there is no such directory.
        SettingsError: if the run's configuration cannot be read.
    """
    if not Path(run).is_dir():
        raise DataError(f"{run} holds no trained model: there is no such directory")
    config = Path(run) / SETTINGS
    return str(peek(config, "task", DEFAULT)) if config.is_file() else DEFAULT
