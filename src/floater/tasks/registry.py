"""The tasks by their names: those of the library, of installed packages and of imported modules."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from floater.errors import nearest
from floater.settings import SettingsError, Tree, make, peek, read
from floater.tasks.task import Task
from floater.training.run import SETTINGS, RunPath, RunWithSettings

GROUP = "floater.tasks"
BUILTIN = (
    "translation",
    "language_modeling",
    "tagging",
    "masked_lm",
    "causal_lm",
    "glue",
    "squad",
    "race",
    "events",
    "documents",
    "generated",
    "image_classification",
)
DEFAULT = "translation"
_TASKS: dict[str, Task] = {}
_Kind = TypeVar("_Kind", bound=type[Task])


def register(name: str) -> Callable[[_Kind], _Kind]:
    """Make a task known by a name.

    A module with such a task is named in a configuration, as in `imports: [my_tasks]`, or in the entry points
    of an installed package, in the group "floater.tasks".

    Args:
        name: what a configuration calls it; a task of the same name is replaced.

    Example:
        >>> @register("toy")
        ... class Toy(Task): ...
        >>> _ = _TASKS.pop("toy", None)
    """

    def enter(kind: _Kind) -> _Kind:
        kind.name = name
        if not kind.__abstractmethods__:
            _TASKS[name] = kind()
        return kind

    return enter


def names() -> list[str]:
    """Return the names of all tasks that are known."""
    return list(dict.fromkeys([*BUILTIN, *_TASKS, *(found.name for found in entry_points(group=GROUP))]))


def task(name: Any, origin: str = "task") -> Task:
    """Return a task by its name.

    Args:
        name: one of `names`.
        origin: where the name stands, for the message.

    Raises:
        SettingsError: if there is no such task; it names the nearest one.

    Example:
        >>> task("translate", "mine.yaml")
        Traceback (most recent call last):
        floater.settings.SettingsError: mine.yaml: unknown task 'translate'; did you mean 'translation'?
    """
    known = isinstance(name, str)
    if known and name not in _TASKS:
        for found in entry_points(group=GROUP, name=name):
            found.load()
        if name in BUILTIN:
            importlib.import_module(f"floater.tasks.{name}")
    if not known or name not in _TASKS:
        raise SettingsError(f"{origin}: unknown task {name!r}; {nearest(name, names())}")
    return _TASKS[name]


def import_modules(modules: Any, origin: str) -> None:
    """Import the modules that a configuration names, which may register tasks and position encodings.

    Args:
        modules: names of modules, found from the working directory, too.
        origin: where they stand, for the message.

    Raises:
        SettingsError: if they are no list of names, or one cannot be imported.

    Example:
        >>> import_modules(["no_such_module"], "mine.yaml")
        Traceback (most recent call last):
        floater.settings.SettingsError: mine.yaml: imports: No module named 'no_such_module'
    """
    if not isinstance(modules, list) or not all(isinstance(name, str) for name in modules):
        raise SettingsError(f"{origin}: imports is {modules!r}; it must be a list of names of modules")
    if modules and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise SettingsError(f"{origin}: imports: {error}") from error


def of_config(tree: Tree, origin: str, overrides: Sequence[str] = ()) -> tuple[Task, Any]:
    """Return the task that a configuration is for, after the modules that it imports, and its settings.

    Args:
        tree: what `floater.settings.read` returns.
        origin: where it comes from, for messages.
        overrides: as for `floater.settings.load`.

    Raises:
        SettingsError: if it names no task, or its settings are not valid.
    """
    import_modules(peek(tree, "imports", [], overrides), origin)
    found = task(peek(tree, "task", DEFAULT, overrides), origin)
    return found, make(found.Settings, tree, origin, overrides)


def of_run(run: str | Path) -> tuple[Task, RunPath]:
    """Return the task of a run and its directory with the settings; translation for a saved model.

    Raises:
        SettingsError: if the run's configuration cannot be read.
    """
    config = Path(run) / SETTINGS
    if not config.is_file():
        return task(DEFAULT), run
    found, settings = of_config(read(config), str(config))
    return found, RunWithSettings(Path(run), settings)
