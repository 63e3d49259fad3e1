"""Registry of tasks by name: tasks of the library, of installed packages and of imported modules."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from transformers import CONFIG_NAME

from floater.errors import DataError, nearest
from floater.lab.settings import SettingsError, Tree, make, peek, read
from floater.lab.tasks.task import Task
from floater.lab.training.files import read_record
from floater.lab.training.run import SETTINGS, RunPath, RunWithSettings
from floater.transformer import FloaterConfig

GROUP = "floater.lab.tasks"
BUILTIN = (
    "translation",
    "language_modeling",
    "tagging",
    "masked_lm",
    "causal_lm",
    "classification",
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
    names it in its entry points, in the group "floater.lab.tasks".

    Args:
        name: name of the task in configurations; a task of the same name is replaced.

    Raises:
        SettingsError: if the class lacks methods or attributes of a task; the message names them.

    Example:
        >>> @register("toy")
        ... class Toy(Task): ...
        Traceback (most recent call last):
        floater.lab.settings.values.SettingsError: the task 'toy' lacks Settings, metric, build, collate, \
encode, make_processor, score
    """

    def enter(kind: _Kind) -> _Kind:
        needed = ["Settings", *(["metric"] if kind.best is Task.best else [])]
        attributes = [each for each in needed if not hasattr(kind, each)]
        if lacking := [*attributes, *sorted(kind.__abstractmethods__)]:
            raise SettingsError(f"the task {name!r} lacks {', '.join(lacking)}")
        kind.name = name
        _TASKS[name] = kind()
        return kind

    return enter


def names() -> list[str]:
    """Return the names of all registered tasks."""
    return list(dict.fromkeys([*BUILTIN, *_TASKS, *(entry.name for entry in entry_points(group=GROUP))]))


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
        floater.lab.settings.values.SettingsError: mine.yaml: unknown task 'translate'; \
did you mean 'translation'?
    """
    is_name = isinstance(name, str)
    if is_name and name not in _TASKS:
        for entry in entry_points(group=GROUP, name=name):
            entry.load()
        if name in BUILTIN:
            importlib.import_module(f"floater.lab.tasks.{name}")
    if not is_name or name not in _TASKS:
        raise SettingsError(f"{origin}: unknown task {name!r}; {nearest(name, names())}")
    return _TASKS[name]


def import_modules(modules: Any, origin: str, *, trusted: bool = False) -> None:
    """Import the modules that a configuration names, which may register tasks and position encodings.

    Args:
        modules: names of modules; the working directory is searched as well.
        origin: file that contains the names, for the message.
        trusted: whether the user consents to running their code. Without consent, only modules that are
            imported already may be named: nothing is executed.

    Raises:
        SettingsError: if `modules` is not a list of names, one cannot be imported, or its code would run
            without consent; the message names its files.

    Example:
        >>> import_modules(["no_such_module"], "mine.yaml", trusted=True)
        Traceback (most recent call last):
        floater.lab.settings.values.SettingsError: mine.yaml: imports: No module named 'no_such_module'
        >>> import_modules(["this"], "theirs.yaml", trusted=False)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        floater.lab.settings.values.SettingsError: theirs.yaml: imports: the module 'this' \
would run the code in ...
    """
    if not isinstance(modules, list) or not all(isinstance(name, str) for name in modules):
        raise SettingsError(f"{origin}: imports is {modules!r}; it must be a list of names of modules")
    if not trusted:
        for name in modules:
            if name not in sys.modules:
                files = _code_of(name)
                if not files:
                    raise SettingsError(f"{origin}: imports: No module named {name!r}")
                raise SettingsError(
                    f"{origin}: imports: the module {name!r} would run the code in {' and '.join(files)}; "
                    "read it and, if you trust it, add --trust-code (in Python, import it first)"
                )
        return
    if modules and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise SettingsError(f"{origin}: imports: {error}") from error


def _code_of(module: str) -> list[str]:
    """Return the files of a module and of the packages around it; empty if there is none.

    `importlib.util.find_spec` would import the packages.
    """
    files: list[str] = []
    name, path = "", None
    for part in module.split("."):
        name = f"{name}.{part}".removeprefix(".")
        specs = [finder.find_spec(name, path) for finder in sys.meta_path]
        if path is None:
            specs.append(PathFinder.find_spec(name, [os.getcwd()]))
        spec = next(filter(None, specs), None)
        if spec is None:
            return []
        if name not in sys.modules:
            files.append(spec.origin or f"the package {name}")  # a namespace package has no file
        # the path of a namespace package looks for that of the package around it, which is not imported
        locations: Any = spec.submodule_search_locations
        path = getattr(locations, "_path", locations) or []
    return files


def from_config(
    tree: Tree, origin: str, overrides: Sequence[str] = (), *, trusted: bool = False
) -> tuple[Task, Any]:
    """Import the modules that a configuration names, and return its task and its settings.

    Args:
        tree: configuration, as returned by `floater.lab.settings.read`.
        origin: file of the configuration, for messages.
        overrides: settings that replace those of the configuration, as for `floater.lab.settings.load`.
        trusted: whether the user consents to running the code of the modules, as for `import_modules`.

    Raises:
        SettingsError: if the configuration names no task, its settings are not valid, or code would run
            without consent.
    """
    import_modules(peek(tree, "imports", [], overrides), origin, trusted=trusted)
    chosen = task(peek(tree, "task", DEFAULT, overrides), origin)
    return chosen, make(chosen.Settings, tree, origin, overrides)


def trust(run: str | Path) -> None:
    """Import the modules that the configuration of a run names, which runs their code.

    Args:
        run: run directory; a directory without a configuration names no modules.

    Raises:
        SettingsError: if the configuration cannot be read, or a module cannot be imported.
    """
    config = Path(run) / SETTINGS
    if config.is_file():
        import_modules(peek(read(config), "imports", []), str(config), trusted=True)


def from_run(run: str | Path, overrides: Sequence[str] = ()) -> tuple[Task, RunPath]:
    """Return the task of a run, and its directory with the settings; a saved model counts as translation.

    Args:
        run: run directory.
        overrides: settings that replace those of the run, as for `floater.lab.settings.load`.

    Raises:
        DataError: if there are overrides and no settings, or it is a checkpoint of another library.
        SettingsError: if the run's configuration cannot be read, or names modules that are not imported yet;
            `trust` imports them.
    """
    config = Path(run) / SETTINGS
    if not config.is_file():
        if overrides:
            raise DataError(f"{run} is no run with settings, so it has no '{overrides[0].partition('=')[0]}'")
        _refuse_checkpoint(Path(run))
        return task(DEFAULT), run
    chosen, settings = from_config(read(config), str(config), overrides, trusted=False)
    return chosen, RunWithSettings(Path(run), settings)


def _refuse_checkpoint(folder: Path) -> None:
    """Refuse a checkpoint of Hugging Face, such as `floater extend` writes."""
    if not (folder / CONFIG_NAME).is_file():
        return
    kind = read_record(folder / CONFIG_NAME).get("model_type")
    if kind != FloaterConfig.model_type:
        raise DataError(
            f"{folder} holds no run (no {SETTINGS}) but a checkpoint of model type {kind!r}; floater train "
            f"with model.path={folder} makes a run of it, and floater extend --prove measures an extension"
        )
