"""Examples in files: the same training as from memory, written once, shared, and made again if damaged."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from floater.lab.tasks import stored, task
from floater.lab.tasks.corpora.text import Pairs
from floater.lab.tasks.finetuning.features import Features
from floater.lab.tasks.language_modeling.data import Rows
from floater.lab.tasks.prepared import Splits
from floater.lab.text.ragged import Groups, Ragged, Records, TextLines
from floater.lab.training.digests import values_digest
from floater.lab.training.run import ENCODED
from floater.lab.training.run_data import RunData
from helpers import equal_runs, kill
from lab.tasks.language_modeling import small as language_modeling
from lab.tasks.translation import small as translation


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floater.lab.tasks.stored.LARGE", 0)


def masked(folder: Path, name: str) -> Any:
    changes = {"objective": "masked", "data": {"documents": "blank line"}, "training": {"average_last": 1}}
    return language_modeling.settings(folder, name, **changes)


def test_values_are_those_that_were_stored(tmp_path: Path) -> None:
    texts = ["Grüße", "", "a\u2028b", "\ud800 is half of a pair"]
    documents = [texts[:2], [], texts[2:]]
    values = Pairs(texts, texts[::-1], 3), documents, Ragged.of([[1, 2], []]), np.arange(3), None
    for _ in range(2):
        pairs, groups, ragged, array, nothing = stored.stored(tmp_path, 1, (Pairs,), lambda: values)
        assert ([*pairs.source], [*pairs.target], pairs.skipped) == (texts, texts[::-1], 3)
        assert [*groups] == documents
        assert ([row.tolist() for row in ragged], array.tolist(), nothing) == ([[1, 2], []], [0, 1, 2], None)
        assert values_digest(pairs) == values_digest(values[0])
        assert values_digest(groups) == values_digest(documents)


def test_records_are_those_that_were_stored(tmp_path: Path) -> None:
    rows = [
        {"input_ids": [[5, 6], [7]], "label": 0.5},
        {"input_ids": [[8], [9]], "label": 1.0},
    ]
    for _ in range(2):
        features = stored.stored(
            tmp_path, "key", (Features,), lambda: Features(Records.of(rows), cut=2, limit="a setting")
        )
        assert [*features.rows] == rows
        assert (features.cut, features.limit, features.lengths) == (2, "a setting", [4, 2])


def test_empty_arrays_can_be_mapped(tmp_path: Path) -> None:
    value = stored.stored(tmp_path, 1, (), lambda: (TextLines.of([""]), Ragged.of([])))
    assert ([*value[0]], [*value[1]]) == ([""], [])


def test_groups_are_lists_of_their_items() -> None:
    groups = Groups.of(TextLines, [["a", "b"], [], ["c"]])
    assert (groups[-1], groups[1], groups[:2]) == (["c"], [], [["a", "b"], []])
    with pytest.raises(IndexError):
        groups[3]


@pytest.mark.usefixtures("everything_is_large")
def test_stored_translation_trains_as_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is stopped and resumed; the second run of the same data encodes nothing."""
    files = translation.write_corpus(tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr("floater.lab.tasks.stored.LARGE", 2**40)
        whole = translation.train(translation.settings(tmp_path, files, "memory"))
    assert not (whole / ENCODED).exists()
    assert equal_runs(translation.train(translation.settings(tmp_path, files, "mapped")), whole)
    stopped = translation.settings(tmp_path, files, "stopped")
    kill(translation.TASK, stopped, 6)
    with monkeypatch.context() as patch:
        patch.setattr("floater.lab.tasks.translation.load_corpus", lambda data: 1 / 0)
        assert equal_runs(translation.train(stopped), whole)


@pytest.mark.usefixtures("everything_is_large")
def test_streams_of_a_memory_are_those_of_each_run(tmp_path: Path) -> None:
    """Their number follows from the batches, not from the data."""
    language_modeling.write_texts(tmp_path)
    lm = task("language_modeling")
    for max_tokens in (64, 32):
        changes = {"data": {"memory": 8}, "model": {"position": "rotary"}}
        settings = language_modeling.settings(tmp_path, "run", training={"max_tokens": max_tokens}, **changes)
        store = stored.store_of(lm, settings, RunData(tmp_path, settings), tmp_path / ENCODED)
        splits = Splits(*store("text", lambda settings=settings: lm.read(settings)))
        train = lm.prepare(settings, tmp_path, splits, store).train
        assert train.streams == max_tokens // settings.data.block


@pytest.mark.usefixtures("everything_is_large")
def test_runs_share_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    language_modeling.write_texts(tmp_path)
    lm = task("language_modeling")
    first = lm.train(masked(tmp_path, "first"), encoded=tmp_path / "shared")
    names = {path.name for path in (tmp_path / "shared").iterdir()}
    assert len(names) == 3  # texts, vocabulary and tokens
    assert not (first / ENCODED).exists()
    second = masked(tmp_path, "second")
    with monkeypatch.context() as patch:
        patch.setattr(Rows, "of", None)  # of the training rows; those for validation are packed in scoring
        with pytest.raises(TypeError):
            lm.train(second, encoded=tmp_path / "other")
    monkeypatch.setattr("floater.lab.tasks.language_modeling.train_bpe", lambda *_, **__: 1 / 0)
    assert equal_runs(lm.train(second, encoded=tmp_path / "shared"), first)
    assert {path.name for path in (tmp_path / "shared").iterdir()} == names


def test_damaged_files_are_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored.stored(tmp_path, "key", (), lambda: ["a text"])
    (file,) = tmp_path.rglob("values.npy")
    file.write_bytes(file.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        assert [*stored.stored(tmp_path, "key", (), lambda: ["a text"])] == ["a text"]
    assert "is made again" in caplog.text
    assert [*stored.stored(tmp_path, "another key", (), lambda: ["b"])] == ["b"]


def test_files_of_another_kind_run_no_code(tmp_path: Path) -> None:
    """Pickled objects, as in a run from elsewhere, are refused."""
    stored.stored(tmp_path, "key", (), lambda: np.arange(2))
    (file,) = tmp_path.rglob("*.npy")
    np.save(file, np.array([object()]), allow_pickle=True)
    with pytest.raises(ValueError, match="Array can't be memory-mapped: Python objects in dtype"):
        stored._read(file.parent, ())
