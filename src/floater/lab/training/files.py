"""Files and directories that are written completely or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from floater.errors import DataError, reason

UNFINISHED = ".unfinished"
"""Suffix of files and directories that are still being written."""
MANIFEST = "manifest.json"
"""Name of the manifest of a sealed directory: size and SHA-256 of each other file. It is written last."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOADED = (".json", ".safetensors", ".bin", ".pt", ".pth", ".py", ".model", ".jinja")


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a directory, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Wait until a directory and everything below it is on the disk."""
    for directory, _, files in os.walk(folder):
        for file in files:
            sync(Path(directory, file))
        sync(Path(directory))


def discard(path: Path) -> None:
    """Remove what an interrupted process left under a temporary name.

    A link itself is removed: an untrusted run directory may have one under such a name, and writing through
    it would overwrite another file.

    Example:
        >>> discard(Path("no-such-file"))
    """
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def no_link(path: str, flags: int) -> int:
    """Open a file, but not through a link: an `opener` for directories that may be untrusted."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def write_whole(path: Path, text: str) -> None:
    """Write a text file completely or not at all.

    Raises:
        OSError: with the name of the file, also of a full disk, of which the system names none.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "note.txt")
        >>> write_whole(path, "a line")
        >>> path.read_text(), [other.name for other in path.parent.iterdir()]
        ('a line', ['note.txt'])
    """
    hidden = path.with_name(f".{path.name}{UNFINISHED}")
    discard(hidden)
    try:
        with open(hidden, "w", encoding="utf-8", opener=no_link) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except OSError as error:
        with suppress(OSError):
            discard(hidden)
        error.filename = str(path)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, completely or not at all."""
    write_whole(path, json.dumps(value, indent=1) + "\n")


def save_whole(path: Path, *parts: Any) -> None:
    """Save models and tokenizers (`save_pretrained`) into one sealed directory, completely or not at all.

    Raises:
        DataError: if they cannot be written, as on a full disk.
    """
    hidden = path.with_name(f".{path.name}{UNFINISHED}")
    discard(hidden)
    try:
        for part in parts:
            part.save_pretrained(hidden)
        seal(hidden)
        os.replace(hidden, path)
    except Exception as error:
        with suppress(OSError):
            discard(hidden)
        why = reason(error)
        full = any(os.strerror(number) in why for number in _FULL)
        # tokenizers has no class of its own for a file that cannot be written
        if full or isinstance(error, OSError | SafetensorError):
            advice = "; make room, then start again" if full else ""
            raise DataError(f"{path} cannot be written ({why}){advice}") from error
        raise
    sync(path.parent)


def seal(folder: Path) -> None:
    """Write the manifest of a directory once its files are on the disk, and wait until it is on the disk."""
    sync_tree(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    parts = {path.relative_to(folder).as_posix(): _fingerprint(path) for path in files}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    mode = manifest.stat().st_mode
    for path in files:
        if path.suffix == ".safetensors":  # which only their owner may read, whatever the umask
            with suppress(PermissionError):
                path.chmod(mode)
    sync(manifest)
    sync(folder)


def read_record(path: Path) -> dict[str, Any]:
    """Read a JSON object that `write_json` wrote.

    Raises:
        DataError: if the file cannot be read or holds something else, as after an incomplete copy.

    Example:
        >>> read_record(Path("no-such-run/result.json"))
        Traceback (most recent call last):
        floater.errors.DataError: no-such-run/result.json cannot be read: No such file or directory
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({error}): restore it, or remove it and start again") from error
    if not isinstance(record, dict):
        raise DataError(f"{path} is damaged (no JSON object): restore it, or remove it and start again")
    return record


def sealed(folder: Path) -> Path:
    """Return a directory after checking its seal, if it has one.

    Raises:
        DataError: if the directory differs from what was sealed, or a file cannot be read; the message names
            the file.
    """
    if (folder / MANIFEST).exists() and (why := damage(folder)) is not None:
        raise DataError(
            f"{folder} is not as it was written: {why}; if you changed it on purpose, remove {MANIFEST} there"
        )
    return folder


def damage(folder: Path | str) -> str | None:
    """Describe the first missing, changed or added file of a sealed directory.

    Of added files, only those beside the manifest count that the libraries which load models look for.

    Args:
        folder: directory whose manifest `seal` wrote.

    Returns:
        A clause that names the file; None if the directory is undamaged.

    Raises:
        DataError: if a file cannot be read, as without permission, so that nothing is known of it.

    Example:
        >>> damage("no-such-checkpoint")
        'manifest.json is missing'
    """
    folder = Path(folder)
    try:
        return _damage(folder)
    except OSError as error:
        raise DataError(f"{error.filename or folder} cannot be read: {reason(error)}") from error


def _damage(folder: Path) -> str | None:
    try:
        parts: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (ValueError, RecursionError) as error:
        return f"{MANIFEST} is not JSON: {error}"
    if not isinstance(parts, dict) or not parts:
        return f"{MANIFEST} lists no files"
    for name, expected in parts.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if not isinstance(expected, dict) or path.stat().st_size != expected.get("size"):
            return f"{name} has another size than it was written with"
        if _fingerprint(path) != expected:
            return f"{name} has changed since it was written"
    for path in sorted(folder.iterdir()):
        if path.suffix in _LOADED and path.name not in {MANIFEST, *parts}:
            return f"{path.name} was added after it was written"
    return None


def _fingerprint(path: Path) -> dict[str, int | str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return {"size": file.tell(), "sha256": digest.hexdigest()}
