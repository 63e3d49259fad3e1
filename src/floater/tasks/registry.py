"""Registry of tasks by name: tasks of the library, of installed packages and of imported modules."""

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
    """Register a task under a name.

    A configuration names the module with such a task, as in `imports: [my_tasks]`, or an installed package
    names it in its entry points, in the group "floater.tasks".

    Args:
        name: name of the task in configurations; a task of the same name is replaced.

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
    """Return the names of all registered tasks."""
    return list(dict.fromkeys([*BUILTIN, *_TASKS, *(found.name for found in entry_points(group=GROUP))]))


def task(name: Any, origin: str = "task") -> Task:
    """Return a task by its name.

    Args:
        name: name of the task, one of `names`.
        origin: file or setting that contains the name, for the message.

    Raises:
        SettingsError: if there is no such task; the message names the nearest one.

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
        modules: names of modules; the working directory is searched as well.
        origin: file that contains the names, for the message.

    Raises:
        SettingsError: if `modules` is not a list of names, or one cannot be imported.

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
    """Import the modules that a configuration names, and return its task and its settings.

    Args:
        tree: configuration, as returned by `floater.settings.read`.
        origin: file of the configuration, for messages.
        overrides: settings that replace those of the configuration, as for `floater.settings.load`.

    Raises:
        SettingsError: if the configuration names no task, or its settings are not valid.
    """
    import_modules(peek(tree, "imports", [], overrides), origin)
    found = task(peek(tree, "task", DEFAULT, overrides), origin)
    return found, make(found.Settings, tree, origin, overrides)


def of_run(run: str | Path) -> tuple[Task, RunPath]:
    """Return the task of a run, and its directory with the settings; a saved model is taken for translation.

    Raises:
        SettingsError: if the run's configuration cannot be read.
    """
    config = Path(run) / SETTINGS
    if not config.is_file():
        return task(DEFAULT), run
    found, settings = of_config(read(config), str(config))
    return found, RunWithSettings(Path(run), settings)
