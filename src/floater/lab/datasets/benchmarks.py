"""Preparation of Multi30k, GLUE, SQuAD, RACE and WikiText, whose files need little more than unpacking."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from floater.errors import DataError
from floater.lab.datasets.archives import unpack
from floater.lab.tasks.corpora.glue import TASKS
from floater.lab.tasks.corpora.leftovers import without_leftovers
from floater.lab.tasks.corpora.text import read_lines

_T = TypeVar("_T")
MRPC_FIELDS = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")


def as_they_are(files: dict[str, Path], scratch: Path, output: Path, processes: int) -> None:
    """Keep the files of a data set as they were downloaded."""
    for name, path in files.items():
        _copy(path, output / name)


def race(files: dict[str, Path], scratch: Path, output: Path, processes: int) -> None:
    """Unpack RACE to train, dev and test, with middle and high in each."""
    (archive,) = files.values()
    unpack(archive, scratch)
    for split in ("train", "dev", "test"):
        folder = _only(_below(scratch, f"{split}/middle"), f"{archive.name}: {split}/middle")
        shutil.move(folder.parent, output / split)


def wikitext(files: dict[str, Path], scratch: Path, output: Path, processes: int) -> None:
    """Unpack the raw text of WikiText to wiki.train.raw, wiki.valid.raw and wiki.test.raw."""
    (archive,) = files.values()
    unpack(archive, scratch)
    for split in ("train", "valid", "test"):
        name = f"wiki.{split}.raw"
        shutil.move(_only(_below(scratch, name), f"{archive.name}: {name}"), output / name)


def glue(files: dict[str, Path], scratch: Path, output: Path, processes: int) -> None:
    """Unpack the tasks of GLUE to a folder each, and divide MRPC as the benchmark does."""
    for name, path in files.items():
        if path.suffix != ".zip":
            continue
        task = _only((task for task in TASKS if name.startswith(task)), f"the task of {name}")
        matches = _below(unpack(path, scratch / task), "train.tsv")
        shutil.move(_only(matches, f"{name}: train.tsv").parent, output / task)
    paraphrases = ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "mrpc_dev_ids.tsv")
    train, test, dev_ids = (files[name] for name in paraphrases)
    _mrpc(train, test, dev_ids, output / "MRPC")


def _mrpc(train: Path, test: Path, dev_ids: Path, output: Path) -> None:
    """Divide the training pairs of the paraphrase corpus by the ids of the development pairs.

    The files of the benchmark have the columns of the corpus; its test set has a number instead of the label.
    """
    held_out = {tuple(line.split("\t")) for line in read_lines(dev_ids)}
    parts: dict[str, list[list[str]]] = {"train": [], "dev": [], "test": []}
    for fields in _paraphrases(train):
        parts["dev" if tuple(fields[1:3]) in held_out else "train"].append(fields)
    for number, fields in enumerate(_paraphrases(test)):
        parts["test"].append([str(number), *fields[1:]])
    output.mkdir()
    for name, rows in parts.items():
        head = ["index" if name == "test" else MRPC_FIELDS[0], *MRPC_FIELDS[1:]]
        text = "".join("\t".join(row) + "\n" for row in (head, *rows))
        (output / f"{name}.tsv").write_text(text, encoding="utf-8", newline="\n")


def _paraphrases(path: Path) -> Iterable[list[str]]:
    for number, line in enumerate(read_lines(path)[1:], start=2):
        fields = line.strip().split("\t")
        if len(fields) != len(MRPC_FIELDS):
            raise DataError(f"{path.name}, line {number}: {len(fields)} fields instead of {len(MRPC_FIELDS)}")
        yield fields


def _below(folder: Path, pattern: str) -> list[Path]:
    return without_leftovers(folder, folder.rglob(pattern))


def _only(matches: Iterable[_T], what: str) -> _T:
    """Return the only match.

    Raises:
        DataError: if there is none, or more than one.
    """
    several = list(matches)
    if len(several) != 1:
        raise DataError(f"{what}: found {len(several)} times, not once")
    return several[0]


def _copy(path: Path, to: Path) -> None:
    try:
        to.hardlink_to(path)
    except OSError:  # a file system without links
        shutil.copyfile(path, to)
