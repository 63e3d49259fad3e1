"""The contents of files and folders, recorded to detect later changes."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from floater.errors import DataError, reason
from floater.lab.training.named_files import file_of, part_of

Contents = dict[str, list["Source"]]
_BLOCK, _SETTLED = 2**20, 2 * 10**9


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
        sha256: SHA-256 of the contents.
        size: number of bytes.
        lines: number of lines; None for a file that is not text.
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
    """The file or the folder that a setting names, with its contents.

    Args:
        path: path of the file or folder.
        files: contents of the files by their paths in the folder; a file itself has the path "". None if
            nothing exists at the path.
    """

    path: str
    files: dict[str, FileDigest] | None

    @property
    def sha256(self) -> str:
        """Return the digest of the file, or of the names and contents of all files in the folder."""
        files = self.files or {}
        if "" in files:
            return files[""].sha256
        lines = "".join(f"{file.sha256} {name}\n" for name, file in files.items())
        return hashlib.sha256(lines.encode()).hexdigest()

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


class Reference(NamedTuple):
    """A source of examples in a setting or an option, compared with others for common examples.

    Args:
        digest: digest of the file or folder, or the name of another source.
        part: part of it that is named, as a split ":test" or articles "[:40]"; "" for all.
    """

    digest: str
    part: str

    def overlaps(self, other: Reference) -> bool:
        """Return whether both are of the same contents, and neither or only one is of a part of them.

        Example:
            >>> whole, start, end = (Reference("a", part) for part in ("", "[:9]", "[9:]"))
            >>> whole.overlaps(start), start.overlaps(end), whole.overlaps(Reference("b", ""))
            (True, False, False)
        """
        return self.digest == other.digest and (self.part == other.part or "" in (self.part, other.part))


def references(value: Any) -> list[Reference]:
    """Return what a setting names: paths or names of data sets, one or several in a list or by language.

    Example:
        >>> [reference.digest for reference in references({"de": "no/such.txt", "en": ["hf:ud/ewt"]})]
        ['no/such.txt', 'hf:ud/ewt']
        >>> references(500), references(None)
        ([], [])
    """
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list):
        return [reference for each in value for reference in references(each)]
    if not isinstance(value, str | Path):
        return []
    path = file_of(value)
    if not path.exists():
        return [Reference(str(value), "")]
    (source,) = contents({"": path})[""]
    return [Reference(source.sha256, part_of(value))]


def contents(
    files: Mapping[str, Any], before: Contents | None = None, *, without: Path | None = None
) -> Contents:
    """Return the contents of the files and folders that settings name.

    Args:
        files: by the name of the setting, a path, a `Part` of a folder, or a list of them. Hidden files in a
            folder are not read.
        before: earlier contents; files that have not changed since are not read again.
        without: folder, such as that of the run itself, whose files are excluded from a folder that contains
        it.

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
    if now - max(times) > _SETTLED:
        return _read(path, status.st_size, state)
    return _read.__wrapped__(path, status.st_size, None)


@lru_cache(maxsize=1024)
def _read(path: Path, size: int, state: str | None) -> FileDigest:
    """Return the contents of a file; those of a file with the same size and state are read once."""
    digest, lines, end, text = hashlib.sha256(), 0, b"\n", True
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            lines, end = lines + block.count(b"\n"), block[-1:]
            text = text and b"\0" not in block
    return FileDigest(digest.hexdigest(), size, lines + (end != b"\n") if text else None, state)
