"""The files that settings and options name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

_PART = re.compile(r"\[\d*:\d*\]$")


def files_named(data: Any) -> dict[str, list[Path]]:
    """Return the files and folders that settings of the data name, by the name of the setting.

    A word that a setting chooses among a few, its type a `Literal`, is none.

    Args:
        data: dataclass of the settings.
    """
    kinds = get_type_hints(type(data))
    texts = {name: value for name, value in vars(data).items() if get_origin(kinds.get(name)) is not Literal}
    return {f"data.{name}": paths for name, value in texts.items() if (paths := paths_in(value))}


def paths_in(value: Any) -> list[Path]:
    """Return the files and directories that a value names: a path, or several in a list, tuple or dict."""
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        return [path for each in value for path in paths_in(each)]
    try:
        named = isinstance(value, str | Path) and bool(str(value)) and file_of(value).exists()
    except (OSError, ValueError):  # longer than a path can be, or with a null character
        named = False
    return [file_of(value)] if named else []


def file_of(path: str | Path) -> Path:
    """Return the file of a path, which may name a part of it, as articles of SQuAD or a split of a folder.

    Example:
        >>> file_of("dev-v1.1.json[:40]").name, file_of(f"{Path.cwd()}:test") == Path.cwd()
        ('dev-v1.1.json', True)
        >>> str(file_of(".:test"))
        '.'
    """
    whole, (folder, _, _) = Path(path), str(path).rpartition(":")
    if whole.exists():
        return whole
    return Path(folder) if folder and Path(folder).is_dir() else Path(_PART.sub("", str(path)))


def part_of(path: str | Path) -> str:
    """Return the part of a file or folder that a path names, with its mark; "" for all of it.

    Example:
        >>> part_of("dev-v1.1.json[:40]"), part_of("./:test"), part_of("corpus.en")
        ('[:40]', ':test', '')
    """
    file, name = file_of(path), str(path)
    return "" if file == Path(name) else name[name.rindex(":" if file.is_dir() else "[") :]
