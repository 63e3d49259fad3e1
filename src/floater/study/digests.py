"""Digests of the files that a run reads, by which a later change of their contents is noticed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

_PART = re.compile(r"\[\d*:\d*\]$")


def digests(given: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the SHA-256 of every file or directory named by options.

    Args:
        given: options by name; a value that is the path of a file, or a list of such, is read. Of a directory
            it is that of the names and contents of all files in it.

    Example:
        >>> digests({"window": 5, "source": "there is no such file"})
        {}
    """
    found = {name: [_digest(path, _state(path)) for path in _paths(value)] for name, value in given.items()}
    return {name: several for name, several in found.items() if several}


def changed(kept: Mapping[str, list[str]], given: Mapping[str, Any]) -> str | None:
    """Return the name of an option whose files are gone or have changed; None if there is none."""
    now = digests({name: given[name] for name in kept if name in given})
    return next((name for name in kept if name in given and now.get(name) != kept[name]), None)


def _paths(value: Any) -> Iterator[Path]:
    for path in value if isinstance(value, list) else [value]:
        if isinstance(path, str | Path) and file_of(path).exists():
            yield file_of(path)


def file_of(path: str | Path) -> Path:
    """Return the file of a path, which may name a part of it, as articles of SQuAD.

    Example:
        >>> file_of("dev-v1.1.json[:40]").name
        'dev-v1.1.json'
    """
    return Path(_PART.sub("", str(path)))


def _state(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Return name, size and time of a file, or of all in a directory."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    stats = [(file.relative_to(path).as_posix(), file.stat()) for file in files]
    return tuple((name, found.st_size, found.st_mtime_ns) for name, found in stats)


@lru_cache(maxsize=1024)
def _digest(path: Path, state: tuple[tuple[str, int, int], ...]) -> str:
    if path.is_file():
        return _file_digest(path)
    lines = "".join(f"{_file_digest(path / name)} {name}\n" for name, _, _ in state)
    return hashlib.sha256(lines.encode()).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
