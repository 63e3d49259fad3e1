"""Downloads that resume after an interruption, are verified, and appear only when complete."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pooch
import requests
from tqdm.auto import tqdm

from floater.errors import DataError
from floater.lab.datasets.catalogue import File

logger = logging.getLogger(__name__)
WAIT, TIMEOUT = 2.0, 30.0
"""Seconds before the next request for the rest of a file, and the timeout of a request."""
CHUNK = 1 << 16
_FULL = (errno.ENOSPC, errno.EDQUOT)


def fetch(file: File, folder: Path, recorded: dict[str, str]) -> Path:
    """Download a file, unless it exists with its checksum.

    The part that was downloaded before an interruption is kept and completed, if the server still has the
    same file. If no checksum is published, that of the first download is recorded.

    Args:
        file: URLs and checksum of the file.
        folder: destination folder.
        recorded: checksums of earlier downloads by URL, to which that of this file is added.

    Returns:
        The path of the file.

    Raises:
        DataError: if no server can be reached or has the file, the connection breaks repeatedly, the
            disk is full, or the file has another checksum.
    """
    checksum = file.hash or recorded.get(file.urls[0])
    with disk_errors(folder):
        for url in file.urls:
            try:
                path = _from(url, file, folder, checksum)
                break
            except DataError:
                if url == file.urls[-1]:
                    raise
                logger.info("%s cannot be downloaded; trying the next address", url)
    if file.hash is None:
        recorded.setdefault(file.urls[0], f"sha256:{pooch.file_hash(str(path))}")
    return path


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Replace the error of a full disk within the context by a `DataError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DataError(
            f"{folder}: {os.strerror(error.errno)}; what was downloaded is kept, and the same command resumes"
        ) from error


def _from(url: str, file: File, folder: Path, checksum: str | None) -> Path:
    pooch.get_logger().setLevel(logging.WARNING)  # this module has the messages
    part = folder / f"{file.name}.part"
    try:
        download = _Download(part, checked=checksum is not None)
        path = pooch.retrieve(url, checksum, file.name, folder, downloader=download)
    except requests.HTTPError as error:
        raise DataError(f"{url}: the server answers: {error.args[0].partition(' for url')[0]}") from error
    except (requests.exceptions.ChunkedEncodingError, _Short) as error:
        there = part.stat().st_size if part.is_file() else 0
        raise DataError(
            f"{url}: the connection breaks off, now after {there:,} bytes; the same command resumes"
        ) from error
    except (requests.ConnectionError, requests.Timeout) as error:
        raise DataError(
            f"{urlsplit(url).hostname} cannot be reached (is this machine offline?); what is needed is {url}"
        ) from error
    except ValueError as error:  # the checksum: pooch has removed the file
        who = file.says or "the first download, recorded beside the data"
        raise DataError(f"{url}: {' '.join(str(error).split())} The known one is that of {who}.") from error
    return Path(path)


class _Short(Exception):
    """A file has fewer bytes than the server stated."""


_PASSING = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError, _Short)


class _Download:
    """A downloader for `pooch` that resumes from an existing part of the file.

    Args:
        part: path of the partial file, which is moved to its destination when it is complete.
        checked: whether the file has a checksum, which would reveal a part of another version.
    """

    def __init__(self, part: Path, checked: bool) -> None:
        self.part, self.checked = part, checked
        self.version = part.with_name(f"{part.name}.json")

    def __call__(self, url: str, output_file: Any, pooch: Any) -> None:
        there = self._size()
        while True:
            try:
                self._stream(url)
                break
            except _PASSING:
                if self._size() <= there:  # it continues as long as data arrive
                    raise
                there = self._size()
                time.sleep(WAIT)
        os.replace(self.part, output_file)
        self.version.unlink(missing_ok=True)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.is_file() else 0

    def _stream(self, url: str) -> None:
        there = self._size()
        headers = {"Accept-Encoding": "identity"}
        if there:
            headers["Range"] = f"bytes={there}-"
            if (before := self._version(url)) is not None:
                headers["If-Range"] = before
            elif not self.checked:  # it may be a part of another file, which no checksum would detect
                del headers["Range"]
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                if self.checked and response.headers.get("Content-Range") == f"bytes */{there}":
                    return  # the file was complete
                self.part.unlink()  # it is no part of the file that the server has now
                self._stream(url)
                return
            response.raise_for_status()
            resumed = response.status_code == requests.codes.partial_content
            size = response.headers.get("Content-Length")
            total = None if size is None else int(size) + there * resumed
            version = response.headers.get("ETag") or response.headers.get("Last-Modified")
            self.version.write_text(json.dumps({"url": url, "version": version}), encoding="utf-8")
            bar = tqdm(total=total, initial=there * resumed, unit="B", unit_scale=True, disable=None)
            with bar, open(self.part, "ab" if resumed else "wb") as out:
                bar.set_description(self.part.stem)
                for chunk in response.iter_content(CHUNK):
                    out.write(chunk)
                    bar.update(len(chunk))
        if total is not None and self._size() != total:
            raise _Short

    def _version(self, url: str) -> str | None:
        """Return the server's tag of the part's version; None without a tag that allows to resume."""
        try:
            read = json.loads(self.version.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        version = read.get("version") if read.get("url") == url else None
        return None if version is None or version.startswith("W/") else str(version)
