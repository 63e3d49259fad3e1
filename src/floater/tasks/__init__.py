"""The tasks: each a module with settings, `train` and `evaluate`."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

# what `task` in a configuration may name, and the settings in the module of that name
TASKS = {"translation": "TranslationSettings", "tagging": "TaggingSettings"}


def module(task: str) -> tuple[ModuleType, type]:
    """The module of a task, and its settings.

    Example:
        >>> module("tagging")[1].__name__
        'TaggingSettings'
    """
    found = import_module(f"floater.tasks.{task}")
    return found, getattr(found, TASKS[task])
