"""The home directory in paths that people write, in settings and on the command line."""

from __future__ import annotations

import os
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

T = TypeVar("T")
_HOME = re.compile(r"~([\w.-]*)(?:/.*)?", re.DOTALL)


def expand_home(value: T, name: str = "") -> T:
    """Return a value with the home directory in place of a leading ``~`` or ``~user`` of each text in it.

    Variables as in ``$HOME`` are not expanded: they are names like others, as is a tilde after ``./``.

    Args:
        value: text, or nested dataclasses, dicts, lists and tuples of texts; other values are returned as
            they are.
        name: name of the value, for the message.

    Raises:
        ValueError: if the user has no home directory, as one who does not exist.

    Example:
        >>> expand_home({"run": "~/runs/a"})["run"] == os.path.expanduser("~/runs/a")
        True
        >>> expand_home("~no.such.user/a", "run")
        Traceback (most recent call last):
        ValueError: run is '~no.such.user/a', but '~no.such.user' has no home directory; as a name, write ./~
    """
    changed: Any = value
    if isinstance(value, str):
        if value.startswith(".") and str(Path(value)).startswith("~"):
            changed = os.path.abspath(value)  # `Path` drops the dot by which "./~" is a name
        elif match := _HOME.fullmatch(value):
            changed = os.path.expanduser(value)
            if changed == value:
                user = f"~{match[1]}"
                raise ValueError(
                    f"{name} is {value!r}, but {user!r} has no home directory; as a name, write ./~"
                )
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        expanded = {key: expand_home(part, key) for key, part in parts.items()}
        changes = {key: part for key, part in expanded.items() if part is not parts[key]}
        changed = replace(value, **changes) if changes else value
    elif isinstance(value, dict):
        items = {
            expand_home(key, name): expand_home(part, f"{name}.{key}".lstrip("."))
            for key, part in value.items()
        }
        changed = value if items == value else items
    elif isinstance(value, list | tuple):
        members = [expand_home(part, name) for part in value]
        same = all(new is old for new, old in zip(members, value, strict=True))
        changed = value if same else type(value)(members)
    return cast(T, changed)


def expand_fields(instance: Any, *names: str) -> None:
    """Apply `expand_home` to the fields of a frozen dataclass, as a part of its validation.

    Args:
        instance: instance of the dataclass.
        *names: names of the fields; by default all.
    """
    for name in names or [field.name for field in fields(instance)]:
        value = getattr(instance, name)
        if (expanded := expand_home(value, name)) is not value:
            object.__setattr__(instance, name, expanded)
