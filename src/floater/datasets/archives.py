"""Unpacking of archives, which may be broken or malicious."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath

from floater.errors import DataError

_CHUNK = 1 << 20


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a .zip or a .tar, compressed or not.

    Args:
        archive: the file.
        folder: folder that its members are extracted to, and nothing outside it.

    Returns:
        The folder.

    Raises:
        DataError: if the archive is broken or larger than the disk, or a member would be written outside the
            folder, is a device, or a link that leads outside.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                for name in packed.namelist():
                    _check_name(name, archive)
                size, free = sum(info.file_size for info in packed.infolist()), shutil.disk_usage(folder).free
                if size > free:
                    raise DataError(f"{archive.name}: it unpacks to {size:,} bytes, and {free:,} are free")
                packed.extractall(folder)
        else:
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
                while packed.fileobj is not None and packed.fileobj.read(_CHUNK):
                    pass  # gzip has its checksum at the end, after the last member
    except tarfile.FilterError as error:
        raise DataError(f"{archive.name}: it would write outside its folder ({error})") from error
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        EOFError,
        zlib.error,
        lzma.LZMAError,
        RuntimeError,
    ) as error:
        # RuntimeError: a member is encrypted, or compressed by a method that zipfile does not have
        raise _broken(archive, error) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise _broken(archive, error) from error  # bz2 and gzip
    return folder


def _broken(archive: Path, error: Exception) -> DataError:
    return DataError(f"{archive.name}: a broken archive ({' '.join(str(error).split())})")


def _check_name(name: str, archive: Path) -> None:
    """Refuse a name that `zipfile` would change silently."""
    windows = PureWindowsPath(name)
    if ".." in windows.parts or windows.drive or windows.root or PurePosixPath(name).is_absolute():
        raise DataError(f"{archive.name}: it would write outside its folder ({name!r})")
