"""Tasks of GLUE (Wang et al. 2019), and their examples in official files or on the Hugging Face hub."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floater.errors import DataError, first_line, no_directory
from floater.lab.tasks.corpora.text import load_split, read_lines

ENTAILMENT = ("entailment", "not_entailment")


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE (Wang et al. 2019, section 3).

    Args:
        name: name of the task's folder and, with .tsv, of its file in a submission.
        texts: names of the columns of the sentence or the pair.
        label: name of the column of the label.
        labels: names of the labels in a file, in the order of their numbers; () if the label is a score.
        metrics: metrics of the benchmark, beginning with that of Liu et al. 2020, Table 3.
        config: name of the task in the dataset "nyu-mll/glue".
        columns: indices of label and texts in files without a header, by the number of fields.
        corrupt: True if the official files contain broken lines, which are excluded and counted.
        best: criterion of the best validation: "metric" (highest first metric) or "loss" (lowest loss).
        valid: names of the validation sets in files and splits; the first one selects the best model.
    """

    name: str
    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    config: str
    columns: dict[int, tuple[int, ...]] = field(default_factory=dict)
    corrupt: bool = False
    best: str = "metric"
    valid: tuple[str, ...] = ("dev",)


TASKS = {
    task.name: task
    for task in (
        GlueTask("CoLA", ("sentence",), "label", ("0", "1"), ("matthews",), "cola", columns={4: (1, 3)}),
        GlueTask("SST-2", ("sentence",), "label", ("0", "1"), ("accuracy",), "sst2"),
        GlueTask("MRPC", ("#1 String", "#2 String"), "Quality", ("0", "1"), ("accuracy", "f1"), "mrpc"),
        GlueTask(
            "QQP",
            ("question1", "question2"),
            "is_duplicate",
            ("0", "1"),
            ("accuracy", "f1"),
            "qqp",
            corrupt=True,
        ),
        GlueTask(
            "STS-B",
            ("sentence1", "sentence2"),
            "score",
            (),
            ("pearson", "spearman"),
            "stsb",
            columns={7: (4, 5, 6), 9: (4, 5, 6)},  # STS benchmark's files, without or with two sources
            best="loss",  # as in RoBERTa's recipe
        ),
        GlueTask(
            "MNLI",
            ("sentence1", "sentence2"),
            "gold_label",
            ("entailment", "neutral", "contradiction"),
            ("accuracy",),
            "mnli",
            valid=("dev_matched", "dev_mismatched"),
        ),
        GlueTask("QNLI", ("question", "sentence"), "label", ENTAILMENT, ("accuracy",), "qnli"),
        GlueTask("RTE", ("sentence1", "sentence2"), "label", ENTAILMENT, ("accuracy",), "rte"),
        GlueTask("WNLI", ("sentence1", "sentence2"), "label", ("0", "1"), ("accuracy",), "wnli"),
    )
}
SCORE_RANGE = (0.0, 5.0)  # range of STS-B; models learn scores divided by 5, as in RoBERTa
_HUB_COLUMNS = {"MRPC": ("sentence1", "sentence2"), "MNLI": ("premise", "hypothesis")}


@dataclass(frozen=True)
class Examples:
    """Texts of a task and, where they are known, their labels.

    Args:
        texts: first and, for pairs, second sentences of all examples: a list for each.
        labels: label numbers, or scores; None for a test set without labels.
        indices: index of each example in a submission.
        left_out: number of broken lines, which are excluded.
    """

    texts: tuple[list[str], ...]
    labels: list[int] | list[float] | None
    indices: list[str]
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.texts[0])

    @property
    def pairs(self) -> tuple[list[str], list[str] | None]:
        """Return the first sentences, and the second sentences or None."""
        return self.texts[0], self.texts[1] if len(self.texts) > 1 else None


def file_paths(folder: str, task: GlueTask, split: str) -> list[Path]:
    """Return the paths that the file of a split may have; the first one that is there is read."""
    directory = Path(folder) / task.name
    directory = directory if directory.is_dir() else Path(folder)
    names = [f"{split}.tsv", f"{split}.tsv.gz", f"sts-{split}.csv"]
    return [directory / name for name in names[: None if task.name == "STS-B" else 2]]


def find_file(folder: str, task: GlueTask, split: str) -> Path:
    """Find the file of a split ("train", or one of `task.valid`) in a folder of all tasks, or of this one.

    Raises:
        DataError: if there is no such file; the message names the existing files.
    """
    paths = file_paths(folder, task, split)
    directory = paths[0].parent
    if not directory.is_dir():
        raise no_directory(folder)
    if (path := next(filter(Path.is_file, paths), None)) is not None:
        return path
    there = ", ".join(sorted(path.name for path in directory.iterdir())) or "nothing"
    raise DataError(f"{directory}: there is no {split}.tsv of {task.name}; the folder holds {there}")


def read_examples(path: str | Path, task: GlueTask, *, labelled: bool = True) -> Examples:
    r"""Read a file of a task, with tab-separated fields, literal quotes, and with or without a header.

    Columns are found by the names of the official header; files without one are recognised by their number
    of fields. A byte-order mark is dropped.

    Args:
        path: path of the file, plain or .gz.
        task: task of the file.
        labelled: True to read labels; test sets may have arbitrary text in their place.

    Raises:
        DataError: if the file is empty or has other columns, or if a line has too few or too many fields or
            an invalid label; the message names file and line.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "dev.tsv")
        ...     _ = file.write_text('gj04\t1\t\tThey said "hi.\nbc01\t0\t*\tHim left.\n')
        ...     read_examples(file, TASKS["CoLA"])
        Examples(texts=(['They said "hi.', 'Him left.'],), labels=[1, 0], indices=['0', '1'], left_out=0)
    """
    lines = read_lines(path)
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise DataError(f"{path}: the file is empty")
    texts, label, index, width = _columns(lines[0].split("\t"), task, path)
    label = label if labelled else None
    begin = 0 if width is None else 1
    rows: list[list[str]] = []
    labels: list[Any] = []
    indices: list[str] = []
    left_out = 0
    for number, line in enumerate(lines[begin:], start=begin + 1):
        fields = line.split("\t")
        if len(fields) not in ((width,) if width else task.columns):
            if task.corrupt and labelled:
                left_out += 1
                continue
            wanted = width or " or ".join(map(str, task.columns))
            raise DataError(
                f"{path}, line {number}: {len(fields)} fields between tabs; it must have {wanted}"
            )
        rows.append([fields[column].strip() for column in texts])
        indices.append(str(number - begin - 1) if index is None else fields[index])
        if label is not None:
            labels.append(_label(fields[label], task, f"{path}, line {number}"))
    if not rows:
        raise DataError(f"{path}: there is no example in it")
    return Examples(
        tuple(list(column) for column in zip(*rows, strict=True)),
        None if label is None else labels,
        indices,
        left_out,
    )


def read_dataset(name: str, split: str, task: GlueTask) -> Examples:
    """Read a split of GLUE from the Hugging Face hub.

    Args:
        name: name of the dataset, such as nyu-mll/glue, or a directory that `datasets` can load.
        split: name of the split: "train", one of `task.valid`, or a test set, as named in files or in the
            dataset.
        task: task to read.

    Raises:
        DataError: if the dataset cannot be loaded, or a label is out of range.
    """
    wanted = split.replace("dev", "validation", 1) if split.startswith("dev") else split
    try:
        data = load_split(name, task.config, wanted)
    except Exception as error:  # datasets raises many types of exceptions, offline and online
        raise DataError(f"{name}: {task.config}, {wanted} cannot be loaded ({first_line(error)})") from error
    columns = _HUB_COLUMNS.get(task.name, task.texts)
    lacking = {*columns, "label"} - set(data.column_names)
    if lacking:
        raise DataError(f"{name}: {task.config} has no column {min(lacking)!r}")
    labels = list(data["label"])
    labelled = set(labels) != {-1}
    for row, label in enumerate(labels):
        low, high = SCORE_RANGE if not task.labels else (0, len(task.labels) - 1)
        kinds = (int,) if task.labels else (int, float)  # not bool
        if labelled and not (type(label) in kinds and low <= label <= high):
            raise DataError(f"{name}, {wanted}, row {row}: label {label!r} is not from {low:g} to {high:g}")
    indices = data["idx"] if "idx" in data.column_names else range(len(data))
    return Examples(
        tuple(list(data[column]) for column in columns), labels if labelled else None, list(map(str, indices))
    )


def _columns(
    fields: Sequence[str], task: GlueTask, path: str | Path
) -> tuple[list[int], int | None, int | None, int | None]:
    """Return the columns of texts, label and index, and the number of fields, None without a header."""
    names = [field.strip() for field in fields]
    if all(text in names for text in task.texts):
        columns = [names.index(text) for text in task.texts]
        index = next((names.index(name) for name in ("index", "id") if name in names), None)
        return columns, names.index(task.label) if task.label in names else None, index, len(names)
    if len(fields) in task.columns:
        label, *texts = task.columns[len(fields)]
        return texts, label, None, None
    raise DataError(
        f"{path}, line 1: not a file of {task.name}: a header must name {', '.join(map(repr, task.texts))}"
        + "".join(f", or a line have {count} fields" for count in task.columns)
        + f"; it is {' | '.join(names)[:80]!r}"
    )


def _label(text: str, task: GlueTask, where: str) -> int | float:
    text = text.strip()
    if task.labels:
        if text not in task.labels:
            raise DataError(
                f"{where}: label {text!r} is none of {task.name}; there are: {', '.join(task.labels)}"
            )
        return task.labels.index(text)
    low, high = SCORE_RANGE
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not low <= score <= high:
        raise DataError(f"{where}: score {text!r} is not a number from {low:g} to {high:g}")
    return score
