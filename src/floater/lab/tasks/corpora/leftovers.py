"""Recognition of the files that operating systems, editors and archivers leave beside data."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import TypeVar

logger = logging.getLogger(__name__)
_P = TypeVar("_P", str, Path)

_NAMES = {
    "__macosx",  # resource forks, in archives made by macOS
    "__pycache__",
    "thumbs.db",
    "ehthumbs.db",
    "desktop.ini",
    "$recycle.bin",
    "system volume information",
    "lost+found",
    "@eadir",  # thumbnails on Synology's servers
    "icon\r",
}


def is_leftover(path: str | PurePath) -> bool:
    """Return whether a path relative to a folder of data belongs to a leftover.

    Leftovers are hidden files and folders (`.ipynb_checkpoints`, `._1.png`), lock and backup files of
    editors, and files that Windows, macOS and file servers add to folders.

    Example:
        >>> [is_leftover(path) for path in ("cat/1.png", "cat/._1.png", "__MACOSX/1.png", "cat/Thumbs.db")]
        [False, True, True, True]
    """
    return any(
        part.startswith((".", "~$")) or part.endswith("~") or part.lower() in _NAMES
        for part in PurePath(path).parts
        if part != ".."
    )


def without_leftovers(folder: str | Path, paths: Iterable[_P]) -> list[_P]:
    """Return the sorted paths that are data, and log the number of the others.

    Args:
        folder: folder or archive with the paths. Only paths below it count: it may itself be in a hidden
            folder.
        paths: paths below the folder, or names of the members of an archive.
    """
    files = sorted(paths)
    below = [path.relative_to(folder) if isinstance(path, Path) else path for path in files]
    kept = [path for path, name in zip(files, below, strict=True) if not is_leftover(name)]
    if skipped := len(files) - len(kept):
        first = next(name for name in below if is_leftover(name))
        logger.info("%s: %d hidden or system files are skipped, such as %s", folder, skipped, first)
    return kept
