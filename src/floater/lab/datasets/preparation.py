"""Preparation of a data set, from its download to a directory that a configuration can name."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from floater.errors import DataError
from floater.lab.datasets import benchmarks, pretraining, translation
from floater.lab.datasets.catalogue import Dataset, dataset
from floater.lab.datasets.download import disk_errors, fetch
from floater.lab.training.files import write_json
from floater.lab.training.lock import file_lock

logger = logging.getLogger(__name__)
SOURCES, RECORDED = "sources.json", "data.lock.json"
"""The sources of a prepared data set; checksums recorded at the first download, where none are published."""

Build = Callable[[dict[str, Path], Path, Path, int], None]
"""Function that builds a data set.

Its arguments are the downloaded files by name, a directory for intermediate files, the empty output
directory, and the number of processes.
"""
BUILD: dict[str, Build] = {
    "wmt14_en_de": translation.wmt14_en_de,
    "wmt14_en_fr": translation.wmt14_en_fr,
    "multi30k": benchmarks.as_they_are,
    "glue": benchmarks.glue,
    "squad": benchmarks.as_they_are,
    "race": benchmarks.race,
    "wikitext2": benchmarks.wikitext,
    "wikitext103": benchmarks.wikitext,
    "wiki_books": pretraining.wiki_books,
}


def prepare(chosen: str | Dataset, to: str | Path = "data", *, processes: int = 1) -> Path:
    """Download a data set, check it, and put it in the layout that tasks and configurations expect.

    The data set is built in a hidden directory, which becomes `to`/NAME when it is complete. A call that
    repeats an interrupted one resumes the downloads, and starts the steps after them again.

    Args:
        chosen: a name of `datasets()`, or a data set.
        to: directory of all data sets.
        processes: number of processes for tokenisation.

    Returns:
        The directory of the data set. It has a file `sources.json` with the URLs, sizes and checksums of its
        sources, and the sources of the checksums.

    Raises:
        DataError: if there is no such data set, its directory holds something else, another process prepares
            it, or it cannot be downloaded, checked, unpacked or written.
    """
    wanted = dataset(chosen) if isinstance(chosen, str) else chosen
    whole = Path(to)
    target, work = whole / wanted.name, whole / f".{wanted.name}.unfinished"
    if whole.exists() and not whole.is_dir():
        raise DataError(f"{whole} is a file; --to takes a directory")
    if (target / SOURCES).is_file():
        logger.info("%s is there", target)
        shutil.rmtree(work, ignore_errors=True)  # of a call that was killed at its end
        return target
    if target.exists():
        raise DataError(f"{target} is there and was not made by `floater data` (no {SOURCES}); move it away")
    downloads, scratch, output = (work / name for name in ("downloads", "scratch", "made"))
    downloads.mkdir(parents=True, exist_ok=True)
    with file_lock(work / "lock", str(target)), disk_errors(whole):
        if (target / SOURCES).is_file():  # another process has made it since the check above
            return target
        files, recorded = _download(wanted, downloads, whole / RECORDED)
        for folder in (scratch, output):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        BUILD[wanted.name](files, scratch, output, processes)
        _write_sources(wanted, files, recorded, output / SOURCES)
        os.sync()
        os.replace(output, target)
        shutil.rmtree(work, ignore_errors=True)
    logger.info("prepared: %s", target)
    return target


def _download(wanted: Dataset, downloads: Path, lock: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the files by name, and the checksums recorded at this download or an earlier one by URL."""
    there = sum(path.stat().st_size for path in downloads.iterdir())
    free, needed = shutil.disk_usage(downloads).free, wanted.bytes - there
    if free < needed:
        raise DataError(f"{downloads}: {free / 1e9:.1f} GB are free, and {needed / 1e9:.1f} GB are to come")
    recorded: dict[str, str] = _read(lock)
    files = {}
    for number, file in enumerate(wanted.files, start=1):
        logger.info("%s (%s of %s)", file.urls[0], number, len(wanted.files))
        before = len(recorded)
        files[file.name] = fetch(file, downloads, recorded)
        if len(recorded) > before:
            logger.info("no checksum of %s is published; that of this download is in %s", file.name, lock)
            write_json(lock, dict(sorted((_read(lock) | recorded).items())))
    return files, recorded


def _write_sources(wanted: Dataset, files: dict[str, Path], recorded: dict[str, str], path: Path) -> None:
    rows = [
        {
            "urls": file.urls,
            "bytes": files[file.name].stat().st_size,
            "hash": file.hash or recorded[file.urls[0]],
            "stated by": file.says or "nobody; recorded at the first download",
        }
        for file in wanted.files
    ]
    about = {"title": wanted.title, "license": wanted.license, "home": wanted.home, "files": rows}
    write_json(path, about)


def _read(lock: Path) -> dict[str, str]:
    if not lock.is_file():
        return {}
    try:
        read = json.loads(lock.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{lock}: not JSON ({error})") from error
    if not isinstance(read, dict) or not all(isinstance(hash, str) for hash in read.values()):
        raise DataError(f"{lock} has no checksums by URL; move it away")
    return read
