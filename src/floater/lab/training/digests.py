"""Digests of the files that a run or a study reads, by which a later change of their contents is noticed."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_origin, get_type_hints

import numpy as np
from torch import Tensor

from floater.errors import DataError, reason

Contents = dict[str, list["Source"]]
_PART = re.compile(r"\[\d*:\d*\]$")
_BLOCK, _MANY, _SETTLED = 2**20, 2**13, 2 * 10**9
_PLAIN = {type(None), bool, int, float, str, bytes}


class Part(NamedTuple):
    """The files of a folder that are read.

    Args:
        folder: the folder.
        patterns: patterns of the paths in it, as for `Path.glob`.
    """

    folder: Path
    patterns: tuple[str, ...]


@dataclass(frozen=True)
class FileDigest:
    """The contents of a file.

    Args:
        sha256: its digest.
        size: its size in bytes.
        lines: number of lines; None for a file that is no text.
        state: device, inode, and times in ns of the last change of contents and of anything, by which an
            unchanged file is not read again. None if it had changed less than two seconds before it was read,
            as a change within the resolution of these times would be missed.
    """

    sha256: str
    size: int
    lines: int | None
    state: str | None


@dataclass(frozen=True)
class Source:
    """What a setting names: a file or a folder.

    Args:
        path: its path.
        files: contents of the files by their paths in the folder; of a file by ""; None if there is nothing.
    """

    path: str
    files: dict[str, FileDigest] | None

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Source:
        """Return a source as `dataclasses.asdict` returned it."""
        files = tree["files"]
        digests = None if files is None else {name: FileDigest(**file) for name, file in files.items()}
        return cls(tree["path"], digests)

    def changes(self, now: Source) -> list[str]:
        """Return the differences in contents, one for each file; paths may differ."""
        if (self.files is None) != (now.files is None):
            return [f"{now.path} is {'missing' if now.files is None else 'new'}"]
        before, after, lines = self.files or {}, now.files or {}, []
        for name in sorted(before | after):
            path = Path(now.path if name in after else self.path, name)
            old, new = before.get(name), after.get(name)
            if old is None:
                lines.append(f"{path} is new")
            elif new is None:
                lines.append(f"{path} is missing")
            elif old.sha256 != new.sha256:
                unit, (was, has) = "lines", (old.lines, new.lines)
                if was is None or has is None:
                    unit, (was, has) = "bytes", (old.size, new.size)
                count = f"{has:,} {unit} as before" if was == has else f"{was:,} {unit}, now {has:,}"
                lines.append(f"{path} has changed ({count})")
        return lines


def contents(
    files: Mapping[str, Any], before: Contents | None = None, *, without: Path | None = None
) -> Contents:
    """Return the contents of the files and folders that settings name.

    Args:
        files: by the name of the setting, a path, a `Part` of a folder, or a list of them. Hidden files in a
            folder are not read.
        before: earlier contents; files that have not changed since are not read again.
        without: folder, as of the run itself, whose files are left out of a folder that contains it.

    Raises:
        DataError: if a file cannot be read.

    Example:
        >>> contents({"data.train": "no-such-file"})
        {'data.train': [Source(path='no-such-file', files=None)]}
    """
    sources = (source for several in (before or {}).values() for source in several)
    digests = (file for source in sources for file in (source.files or {}).values())
    seen = {(file.size, file.state): file for file in digests if file.state}
    left_out = None if without is None else without.resolve()
    return {
        name: [_source(path, seen, left_out) for path in (value if isinstance(value, list) else [value])]
        for name, value in files.items()
    }


def _source(
    named: str | Path | Part, seen: Mapping[tuple[int, str], FileDigest], without: Path | None
) -> Source:
    path = named.folder if isinstance(named, Part) else file_of(named)
    if not path.exists():
        return Source(str(path), None)
    patterns = named.patterns if isinstance(named, Part) else None
    names = _names(path, patterns, without) if path.is_dir() else [""]
    try:
        return Source(str(path), {name: _contents(path / name if name else path, seen) for name in names})
    except OSError as error:
        raise DataError(f"{error.filename or path}: cannot be read ({reason(error)})") from error


def _names(folder: Path, patterns: tuple[str, ...] | None = None, without: Path | None = None) -> list[str]:
    """Return the paths of the files in a folder, without hidden ones."""
    paths = _walk(folder) if patterns is None else (path for each in patterns for path in folder.glob(each))
    names = {path.relative_to(folder) for path in paths if path.is_file()}
    return sorted(
        name.as_posix()
        for name in names
        if not any(part.startswith(".") for part in name.parts)
        and (without is None or without not in (folder / name).resolve().parents)
    )


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder, also behind links to folders, unless these lead back up."""
    for directory, folders, files in os.walk(folder, followlinks=True):
        here = Path(directory)
        above = {here.resolve(), *here.resolve().parents}
        folders[:] = [name for name in folders if (here / name).resolve() not in above]
        yield from (here / name for name in files)


def _contents(path: Path, seen: Mapping[tuple[int, str], FileDigest]) -> FileDigest:
    status, now = path.stat(), time.time_ns()
    times = status.st_mtime_ns, status.st_ctime_ns
    state = " ".join(map(str, (status.st_dev, status.st_ino, *times)))
    if (before := seen.get((status.st_size, state))) is not None:
        return before
    if not path.is_file():  # a pipe, or a device: to read it would take the data away
        return FileDigest("", status.st_size, None, None)
    digest, lines, end, text = hashlib.sha256(), 0, b"\n", True
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            lines, end = lines + block.count(b"\n"), block[-1:]
            text = text and b"\0" not in block
    return FileDigest(
        sha256=digest.hexdigest(),
        size=status.st_size,
        lines=lines + (end != b"\n") if text else None,
        state=state if now - max(times) > _SETTLED else None,
    )


def values_digest(value: Any) -> str | None:
    """Return the SHA-256 of texts, numbers and arrays in nested lists, dicts and dataclasses.

    Names of classes and fields have no part in it.

    Args:
        value: examples, or parts of them.

    Returns:
        The digest; None if there is something of another type in the value.

    Example:
        >>> len({values_digest(value) for value in (["ab", 1], ["ab", 1], ["a", "b", 1])})
        2
        >>> values_digest([object()]) is None
        True
    """
    digest = hashlib.sha256()
    try:
        for part in _parts(value):
            digest.update(part)
    except TypeError:
        return None
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield bytes that determine a value.

    Raises:
        TypeError: if it has a type of which this is not known.
    """
    if type(value) in _PLAIN:
        yield repr(value).encode("utf-8", "surrogatepass")
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, Tensor):
        yield from _parts(value.detach().cpu().numpy())
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _parts([getattr(value, field.name) for field in fields(value)])
    elif isinstance(value, Mapping):
        yield b"{"
        yield from _parts([*value.items()])
    elif isinstance(value, list | tuple):
        yield f"[{len(value)}".encode()
        if _is_plain(value):  # much faster than one by one
            for start in range(0, len(value), _MANY):
                yield repr([*value[start : start + _MANY]]).encode("utf-8", "surrogatepass")
        else:
            for each in value:
                yield from _parts(each)
                yield b","
    else:
        raise TypeError(f"no digest of {type(value).__name__}")


def _is_plain(values: list[Any] | tuple[Any, ...]) -> bool:
    """Return whether there is nothing but texts and numbers in nested lists and tuples."""
    kinds = {*map(type, values)}
    return kinds <= _PLAIN or (kinds <= {list, tuple} and all(map(_is_plain, values)))


def digests(given: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the SHA-256 of every file or directory named by options.

    Args:
        given: options by name; a value that is the path of a file, or a list of such, is read. Of a directory
            it is that of the names and contents of all files in it, without hidden ones.

    Example:
        >>> digests({"window": 5, "source": "there is no such file"})
        {}
    """
    found = {name: [_digest(path, _state(path)) for path in paths_in(value)] for name, value in given.items()}
    return {name: several for name, several in found.items() if several}


def changed(kept: Mapping[str, list[str]], given: Mapping[str, Any]) -> str | None:
    """Return the name of an option whose files are gone or have changed; None if there is none."""
    now = digests({name: given[name] for name in kept if name in given})
    return next((name for name in kept if name in given and now.get(name) != kept[name]), None)


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
    """Return the file of a path, which may name a part of it, as articles of SQuAD.

    Example:
        >>> file_of("dev-v1.1.json[:40]").name
        'dev-v1.1.json'
    """
    whole = Path(path)
    return whole if whole.exists() else Path(_PART.sub("", str(path)))


def _state(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Return name, size and time of a file, or of all in a directory."""
    files = {name: path / name if name else path for name in (_names(path) if path.is_dir() else [""])}
    stats = [(name, file.stat()) for name, file in files.items()]
    return tuple((name, found.st_size, found.st_mtime_ns) for name, found in stats)


@lru_cache(maxsize=1024)
def _digest(path: Path, state: tuple[tuple[str, int, int], ...]) -> str:
    if not path.is_dir():
        return _contents(path, {}).sha256
    lines = "".join(f"{_contents(path / name, {}).sha256} {name}\n" for name, _, _ in state)
    return hashlib.sha256(lines.encode()).hexdigest()
