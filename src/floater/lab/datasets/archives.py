"""Unpacking of archives, which may be broken or malicious."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import shutil
import stat
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, cast

from floater.errors import DataError

_CHUNK = 1 << 20
_RATIO, _SMALL = 100, 1 << 26
"""Largest ratio of unpacked to packed bytes, and the bytes that are unpacked whatever the ratio.

Text has a ratio below 20; a file of zeros has 1000.
"""
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""Functions that open a compressed tar, by its first bytes."""


_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    RuntimeError,
    ValueError,
)
"""Errors of a broken archive.

RuntimeError: a member is encrypted, or compressed by a method that zipfile does not have.
ValueError: a header has an invalid number, or a name has a null character.
"""


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a .zip or a .tar, compressed or not.

    An archive holds files and directories below the folder, each file once. Links and devices are refused, as
    one member could be written through another.

    Args:
        archive: path of the archive.
        folder: folder that its members are extracted to; nothing is written outside it.

    Returns:
        The folder.

    Raises:
        DataError: if the archive is broken, holds anything else, or unpacks to more bytes than the disk has
            free or than 100 times its own size.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with zipfile.ZipFile(folder / "evil.zip", "w") as packed:
        ...     packed.writestr("../evil.txt", "")
        >>> unpack(folder / "evil.zip", folder / "to")
        Traceback (most recent call last):
        floater.errors.DataError: evil.zip: it would write outside its folder ('../evil.txt')
    """
    folder.mkdir(parents=True, exist_ok=True)
    read = _zipped if zipfile.is_zipfile(archive) else _tarred
    files = set[str]()
    try:
        for name, content in read(archive, shutil.disk_usage(folder).free):
            parts = _parts(name, archive)
            path = folder.joinpath(*parts)
            if content is None:
                path.mkdir(parents=True, exist_ok=True)
                continue
            same = unicodedata.normalize("NFC", "/".join(parts)).casefold()  # as some file systems compare
            if not parts or same in files:
                raise DataError(f"{archive.name}: it has the file {name!r} twice, or with other capitals")
            files.add(same)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            with path.open("xb") as file:
                shutil.copyfileobj(content, file, _CHUNK)
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise DataError(f"{archive.name}: {error.filename} is a file and a directory") from error
    except DataError:
        raise
    except _BROKEN as error:
        raise _broken(archive, error) from error
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):
            raise
        raise _broken(archive, error) from error  # bz2 and gzip, or a place before the start of the file
    return folder


def _zipped(archive: Path, free: int) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Check all members, then yield their names and contents, None for a directory."""
    with zipfile.ZipFile(archive) as packed:
        infos = packed.infolist()
        for info in infos:
            _parts(info.filename, archive)
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _special(archive, info.filename)
        _Budget(archive, free).spend(sum(info.file_size for info in infos))
        for info in infos:
            with packed.open(info) as content:
                yield info.filename, None if info.is_dir() else content


def _tarred(archive: Path, free: int) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Yield names and contents, None for a directory; a tar has no list, so each is checked on its own."""
    with archive.open("rb") as file:
        start = file.read(max(map(len, _OPENERS)))
    opener = next((each for magic, each in _OPENERS.items() if start.startswith(magic)), open)
    budget = _Budget(archive, free)
    with opener(archive, "rb") as unpacked:
        stream = _Stream(unpacked, _Budget(archive))
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as packed:
            while (info := packed.next()) is not None:
                if not (info.isreg() or info.isdir()):
                    raise _special(archive, info.name)
                budget.spend(info.size)  # of a sparse file, more than the stream has
                yield info.name, packed.extractfile(info)
                packed.members.clear()  # type: ignore[attr-defined]  # it would keep all in memory
            if stream.last != tarfile.NUL * tarfile.BLOCKSIZE:  # tarfile takes a damaged header for the end
                raise tarfile.ReadError("a header is damaged, or the end is missing")
            while stream.read(_CHUNK):
                pass  # gzip has its checksum at the end, after the last member


class _Budget:
    """Bytes that an archive may unpack to.

    Args:
        archive: the archive.
        free: bytes that are free on the disk; None if the bytes are not written.
    """

    def __init__(self, archive: Path, free: int | None = None) -> None:
        self.archive, self.spent = archive, 0
        self.most, self.reason = (
            max(_RATIO * archive.stat().st_size, _SMALL),
            f"more than {_RATIO} times its own",
        )
        if free is not None and free < self.most:
            self.most, self.reason = free, f"and {free:,} are free"

    def spend(self, size: int) -> None:
        """Count bytes that are unpacked.

        Raises:
            DataError: if the total exceeds the budget.
        """
        self.spent += size
        if self.spent > self.most:
            raise DataError(f"{self.archive.name}: it unpacks to {self.spent:,} bytes, {self.reason}")


class _Stream:
    """An unpacked tar that is read from start to end, within a budget.

    Args:
        file: the unpacked tar.
        budget: budget of the bytes that are read.
    """

    def __init__(self, file: IO[bytes], budget: _Budget) -> None:
        self.file, self.budget = file, budget
        self.last = b""

    def tell(self) -> int:
        return self.budget.spent

    def seek(self, position: int) -> None:
        while (missing := position - self.tell()) > 0 and self.read(min(missing, _CHUNK)):
            pass
        if missing < 0:
            raise tarfile.ReadError("its members overlap")

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _CHUNK:  # contents are read in parts
            raise tarfile.ReadError(f"a header has {size:,} bytes")
        self.last = self.file.read(size)
        self.budget.spend(len(self.last))
        return self.last


def _broken(archive: Path, error: Exception) -> DataError:
    return DataError(f"{archive.name}: a broken archive ({' '.join(str(error).split())})")


def _special(archive: Path, name: str) -> DataError:
    return DataError(f"{archive.name}: {name!r} is neither a file nor a directory, but a link or a device")


def _parts(name: str, archive: Path) -> tuple[str, ...]:
    """Return the parts of a member's path.

    Raises:
        DataError: if the path leads out of the folder on any operating system.
    """
    windows, path = PureWindowsPath(name), PurePosixPath(name)
    if ".." in windows.parts or windows.drive or windows.root or path.is_absolute():
        raise DataError(f"{archive.name}: it would write outside its folder ({name!r})")
    return path.parts
