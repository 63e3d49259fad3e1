"""What files held when a run read them, so that other contents under the same names are noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any


def digests(given: Mapping[str, Any]) -> dict[str, list[str]]:
    """The SHA-256 of every file that options name.

    Args:
        given: options by name; a value that is the path of a file, or a list of such, is read.

    Example:
        >>> digests({"window": 5, "source": "there is no such file"})
        {}
    """
    found = {name: [_digest(path, *_state(path)) for path in _files(value)] for name, value in given.items()}
    return {name: several for name, several in found.items() if several}


def changed(kept: Mapping[str, list[str]], given: Mapping[str, Any]) -> str | None:
    """The name of an option whose files are gone or no longer hold what they held; None if there is none."""
    now = digests({name: given[name] for name in kept if name in given})
    return next((name for name in kept if name in given and now.get(name) != kept[name]), None)


def _files(value: Any) -> Iterator[str]:
    for path in value if isinstance(value, list) else [value]:
        if isinstance(path, str | Path) and Path(path).is_file():
            yield str(path)


def _state(path: str) -> tuple[int, int]:
    found = Path(path).stat()
    return found.st_size, found.st_mtime_ns


@lru_cache(maxsize=1024)
def _digest(path: str, size: int, written: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
