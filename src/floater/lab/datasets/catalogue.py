"""The data sets that can be prepared: files, sizes, licences, and sources of the checksums."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from floater.errors import DataError, nearest


@dataclass(frozen=True)
class File:
    """A file on the network.

    Args:
        urls: URLs of the file; all serve the same bytes, and the first that answers is used.
        bytes: size of the file; None if unknown.
        hash: checksum of the file, as in "sha256:..."; None if none is published.
        says: source of the checksum.
    """

    urls: tuple[str, ...]
    bytes: int | None = None
    hash: str | None = None
    says: str | None = None

    @property
    def name(self) -> str:
        """Return the name of the file on this machine."""
        return self.urls[0].rpartition("/")[2]


@dataclass(frozen=True)
class Dataset:
    """A data set that `floater data` prepares.

    Args:
        name: name of the data set and of its directory.
        title: one-line description.
        license: licence of the data set.
        home: home page of the data set.
        files: files to download.
    """

    name: str
    title: str
    license: str
    home: str
    files: tuple[File, ...]

    @property
    def bytes(self) -> int:
        """Return the known size of the download."""
        return sum(file.bytes or 0 for file in self.files)


@functools.cache
def datasets() -> dict[str, Dataset]:
    """Return the data sets by name.

    Example:
        >>> datasets()["race"].files[0].name
        'RACE.tar.gz'
    """
    text = resources.files("floater.lab.datasets").joinpath("sources.yaml").read_text(encoding="utf-8")
    read = yaml.safe_load(text)
    return {
        name: Dataset(
            name=name,
            title=entry["title"],
            license=entry["license"],
            home=entry["home"],
            files=tuple(file for item in entry["files"] for file in _files(item, entry, read["provenance"])),
        )
        for name, entry in read["datasets"].items()
    }


def dataset(name: str) -> Dataset:
    """Return a data set by its name.

    Raises:
        DataError: if there is no data set of this name.

    Example:
        >>> dataset("multi30")
        Traceback (most recent call last):
        floater.errors.DataError: there is no data set 'multi30'; did you mean 'multi30k'?
    """
    available = datasets()
    if name not in available:
        raise DataError(f"there is no data set '{name}'; {nearest(name, available)}")
    return available[name]


def listing() -> str:
    """Return a list of the data sets as text: name, size of the download, licence, title and home page."""
    rows = []
    for each in datasets().values():
        more = " or more" if any(file.bytes is None for file in each.files) else ""
        rows += [f"{each.name:<12} {_size(each.bytes)}{more}, licence: {each.license}"]
        rows += [f"{'':<12} {each.title}", f"{'':<12} {each.home}"]
    return "\n".join(rows)


def _files(item: dict[str, Any], entry: dict[str, Any], provenance: dict[str, str]) -> list[File]:
    says = item.get("says", entry.get("says"))
    urls = tuple(item.get("urls") or [entry["base"] + item["name"]])
    file = File(urls, item.get("bytes"), item.get("hash"), None if says is None else provenance[says])
    if "numbered" not in item:
        return [file]
    return [File(tuple(url.format(i) for url in urls)) for i in range(item["numbered"])]


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
