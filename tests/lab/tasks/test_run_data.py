"""A run resumes on the data that it began with, of whatever task, or says what has changed."""

import importlib
import json
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from floater.errors import DataError
from floater.lab.settings import make
from floater.lab.tasks import RunSettings, task
from floater.lab.training.contents import contents
from floater.lab.training.run_data import RunData

CONLLU = "1\tGo\tgo\tVERB\t_\t_\t0\troot\t_\t_\n2\ton\ton\tADV\t_\t_\t1\tadvmod\t_\t_\n\n"
PASSAGE = {"article": "in rome", "questions": ["where?"], "options": [["a", "b", "c", "d"]], "answers": ["A"]}
OPENED: list[Path] | None = None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and OPENED is not None and isinstance(arguments[0], str | Path):
        OPENED.append(Path(arguments[0]).resolve())


@pytest.fixture
def opened() -> Iterator[Callable[[], list[Path]]]:
    """The files that Python opens, from the first call on."""
    global OPENED
    OPENED = []
    yield lambda: list(OPENED or [])
    OPENED = None


sys.addaudithook(_note)  # it cannot be removed


def text(path: Path, *lines: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def translation(folder: Path) -> dict[str, Any]:
    names = [f"{part}_{side}" for part in ("train", "valid") for side in ("source", "target")]
    (folder / "en").mkdir()  # called as the language
    return {name: text(folder / name, f"a {name}", "b") for name in names}


def plain(folder: Path) -> dict[str, Any]:
    return {
        "train": [text(folder / "a", "a b c"), text(folder / "b", "d e")],
        "valid": text(folder / "c", "a b"),
    }


def tagging(folder: Path) -> dict[str, Any]:
    return {
        name: text(folder / f"{name}.conllu", CONLLU * (1 + (name == "train"))) for name in ("train", "valid")
    }


def glue(folder: Path) -> dict[str, Any]:
    for name in ("train", "dev", "test"):
        text(folder / "CoLA" / f"{name}.tsv", "a\t1\t\tit was good", f"b\t0\t*\tit was {name}")
    text(folder / "RTE" / "train.tsv", "of another task")
    return {"task": "CoLA", "folder": str(folder)}


def squad(folder: Path) -> dict[str, Any]:
    for name in ("train", "valid"):
        asked = {"id": name, "question": "where?", "answers": [{"text": "rome", "answer_start": 3}]}
        paragraph = {"context": "in rome", "qas": [asked]}
        text(folder / name, json.dumps({"data": [{"title": "a", "paragraphs": [paragraph]}]}))
    return {"train": str(folder / "train"), "valid": f"{folder / 'valid'}[:1]"}


def race(folder: Path) -> dict[str, Any]:
    for name in ("train", "valid"):
        for level in ("middle", "high"):
            text(folder / name / level / "1.txt", json.dumps(PASSAGE | {"article": name}))
    text(folder / "train" / "README.md", "about the data")
    return {"train": str(folder / "train"), "valid": str(folder / "valid")}


def events(folder: Path) -> dict[str, Any]:
    text(folder / "train" / "time.txt", *["0 1 2"] * 20)
    text(folder / "train" / "event.txt", *["a b a"] * 20)
    text(folder / "train" / "notes.txt", "about the data")
    return {"train": str(folder / "train")}


def documents(folder: Path) -> dict[str, Any]:
    for i in range(30):
        text(folder / ("good", "bad")[i % 2] / f"{i}.txt", "a b", f"c {i}")
    text(folder / "good" / "README.md", "about the data")
    return {"train": str(folder)}


def zipped(folder: Path) -> dict[str, Any]:
    documents(folder / "plain")
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for path in sorted(folder.glob("plain/*/*.txt")):
            archive.write(path, path.relative_to(folder / "plain"))
    return {"train": str(folder / "all.zip")}


def images(folder: Path) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    for part in ("train", "valid", "test"):
        for label in ("a", "b"):
            (folder / part / label).mkdir(parents=True)
            for i in range(2):
                pixels = draw.integers(0, 255, (4, 4), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / label / f"{i}.png")
    text(folder / "README.md", "about the data")
    return {"source": str(folder), "image_size": 4}


CASES: dict[str, tuple[str, Callable[[Path], dict[str, Any]]]] = {
    "translation": ("translation", translation),
    "language_modeling": ("language_modeling", plain),
    "masked_lm": ("masked_lm", plain),
    "causal_lm": ("causal_lm", plain),
    "tagging": ("tagging", tagging),
    "glue": ("glue", glue),
    "squad": ("squad", squad),
    "race": ("race", race),
    "events": ("events", events),
    "documents": ("documents", documents),
    "zipped documents": ("documents", zipped),
    "images": ("image_classification", images),
}
STARTS = ("masked_lm", "causal_lm", "glue", "squad", "race")


def begin(settings: Any) -> RunData:
    """Write the record of a run as its first start does, before the vocabulary."""
    run = Path(settings.run)
    data, splits = RunData(run, settings), task(settings.task).read(settings)
    data.check()
    data.check_examples(train=splits.train, valid=splits.valid)
    run.mkdir()
    data.write()
    return data


def check(settings: Any) -> None:
    RunData(Path(settings.run), settings).check()


@pytest.mark.parametrize("case", CASES)
def test_a_change_of_any_file_that_a_task_reads_is_refused_and_of_no_other(
    case: str, tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[], list[Path]]
) -> None:
    """The files that the task opens are the oracle."""
    name, write = CASES[case]
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.chdir(folder)
    tree = {"run": str(tmp_path / "run"), "task": name, "data": write(folder)}
    if name in STARTS:
        shutil.copytree(bert, tmp_path / "bert")
        tree |= {"model": {"path": str(tmp_path / "bert")}}
    settings = make(task(name).Settings, tree, "here")
    mine = set(tmp_path.resolve().rglob("*"))
    before = len(opened())
    task(name).read(settings)
    read = {path for path in opened()[before:] if path in mine}
    assert read
    data = begin(settings)
    sources = [source for several in contents(settings.files_read()).values() for source in several]
    files = {Path(source.path, each).resolve() for source in sources for each in source.files or ()}
    assert read <= files
    assert None not in data.examples.values(), "every task's examples are compared as well"
    for path in sorted(mine):
        if not path.is_file():
            continue
        kept = path.read_bytes()
        path.write_bytes(kept + b"\n")
        if path in files:
            with pytest.raises(DataError, match=rf"{path.name} has changed \(") as refused:
                check(settings)
            assert "\n" not in str(refused.value)
            path.unlink()
            with pytest.raises(DataError, match=rf"{path.name} is missing|1 there"):
                check(settings)
        else:
            check(settings)
        path.write_bytes(kept)
        check(settings)
    assert ("bert" in {path.parent.name for path in files}) == (name in STARTS)


def test_the_same_data_elsewhere_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    tree = {"run": str(tmp_path / "run"), "task": "documents", "data": documents(tmp_path / "data")}
    begin(make(task("documents").Settings, tree, "here"))
    (tmp_path / "data").rename(tmp_path / "moved")
    (tmp_path / "run").rename(tmp_path / "renamed")
    moved = {"run": str(tmp_path / "renamed"), "data": {"train": str(tmp_path / "moved")}}
    check(make(task("documents").Settings, tree | moved, "here"))
    (tmp_path / "moved" / "good").rename(tmp_path / "moved" / "better")  # the label is the name
    with pytest.raises(DataError, match=r"better/0\.txt is new; .*; and 27 more"):
        check(make(task("documents").Settings, tree | moved, "here"))


@dataclass(frozen=True)
class OutsideData:
    train: str
    nested: dict[str, Any]
    languages: tuple[str, ...] = ("en", "de")


@dataclass(frozen=True, kw_only=True)
class OutsideSettings(RunSettings):
    task: str = "outside"
    data: OutsideData
    model: dict[str, Any]


def test_a_task_of_another_package_is_checked_without_a_line_of_its_own(tmp_path: Path) -> None:
    files = [text(tmp_path / "root" / name, "a") for name in ("one", "two", ".hidden", "run/log")]
    data = OutsideData(str(tmp_path / "root"), {"valid": [files[1]]})
    settings = OutsideSettings(run=str(tmp_path / "root" / "run"), data=data, model={})
    assert settings.files_read().keys() == {"data.train", "data.nested"}
    record = RunData(Path(settings.run), settings)
    record.check_examples(train=["a"], valid=["b"])
    record.write()
    for file, noticed in zip(files, (True, True, False, False), strict=True):
        kept = Path(file).read_text(encoding="utf-8")
        text(Path(file), "b")
        data_now = RunData(Path(settings.run), settings)
        assert bool(data_now.changes) == noticed
        Path(file).write_text(kept, encoding="utf-8")
    again = RunData(Path(settings.run), settings)
    again.check()
    with pytest.raises(DataError, match="the valid examples differ, though no file or setting does"):
        again.check_examples(train=["a"], valid=["c"])


def test_other_code_of_an_imported_module_is_named_and_accepted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = text(tmp_path / "my_encoding.py", "one = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("my_encoding")
    data = OutsideData(text(tmp_path / "train.txt", "a"), {})
    settings = OutsideSettings(run=str(tmp_path / "run"), data=data, model={}, imports=["my_encoding"])
    record = RunData(tmp_path / "run", settings)
    (tmp_path / "run").mkdir()
    record.write()
    assert not RunData(tmp_path / "run", settings).code_changes
    assert RunData(tmp_path / "run", settings).names == {"data.train"}, "another list of modules is refused"
    text(Path(code), "one = 1", "two = 2")
    now = RunData(tmp_path / "run", settings)
    assert now.code_changes == [f"imports: {code} has changed (1 lines, now 2)"]
    assert not now.changes
    now.check()
    now.write()
    now.write()
    accepted = json.loads((tmp_path / "run" / "data.json").read_text())["accepted"]
    assert accepted == [{"step": 0, "changes": [f"imports: {code} has changed (1 lines, now 2)"]}]
    assert not RunData(tmp_path / "run", settings).code_changes
