"""From sentences to batches."""

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from floater.errors import DataError
from floater.lab.tasks.corpora.text import Pairs
from floater.lab.tasks.translation.data import TokenPairs, collate, load_corpus
from floater.lab.tasks.translation.settings import Data
from floater.lab.text.bpe import encode, train_bpe


def write(folder: Path, **texts: str) -> Data:
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return Data(
        **{
            name: str(folder / name)
            for name in ("train_source", "train_target", "valid_source", "valid_target")
        }
    )


def test_pairs_with_an_empty_side_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = write(
        tmp_path,
        train_source="one\n\ntwo\n  \nthree\n",
        train_target="eins\nzwei\n\n\ndrei\n",
        valid_source="four\n",
        valid_target="vier\n",
    )
    with caplog.at_level("INFO"):
        train, _ = load_corpus(data)
    assert train == Pairs(["one", "three"], ["eins", "drei"], skipped=3)
    assert caplog.messages == ["2 training pairs; 3 with an empty side skipped", "1 validation pairs"]


def test_pairs_of_training_and_validation_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sides = {"source": "one\ntwo\nthree\n", "target": "eins\nzwei\ndrei\n"}
    train = {f"train_{side}": text for side, text in sides.items()}
    load_corpus(write(tmp_path, **train, valid_source="one\ntwo\n", valid_target="eins\nDrei\n"))
    assert caplog.messages[-1] == "1 of 2 validation pairs are in the training data, too"


def test_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    write(tmp_path, a_en="one\n", b_en="two\nthree\n", a_de="eins\n", b_de="zwei\ndrei\n")
    english, german = ([str(tmp_path / f"{name}_{side}") for name in "ab"] for side in ("en", "de"))
    data = Data(train_source=english, train_target=german, valid_source=english[0], valid_target=german[0])
    assert load_corpus(data)[0].source == ["one", "two", "three"]
    unequal = Data(train_source=english, train_target=german[:1], valid_source="v", valid_target="v")
    with pytest.raises(DataError, match="2 source files and 1 target files"):
        load_corpus(unequal)


def test_the_built_in_corpus(tmp_path: Path) -> None:
    train, _ = load_corpus(Data(builtin=5, source="de", target="fr"))
    assert len(train.source) == len(train.target) == 5
    with pytest.raises(DataError, match="built-in corpus: language must be one of de, en, fr, got 'xx'"):
        load_corpus(Data(builtin=5, target="xx"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A stand-in for the hub, as nothing is downloaded here: rows by split."""
    rows: dict[str, Any] = {}

    def load_dataset(name: str, config: str | None, *, split: str) -> dict[str, Any]:
        if split not in rows:
            raise ValueError(f"Unknown split {split!r}.\nMore lines.")
        return {"translation": rows[split]}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return rows


def test_a_data_set_of_the_hub(hub: dict[str, Any]) -> None:
    hub["train"] = [{"en": "one", "de": "eins"}, {"en": "two", "de": None}]
    data = Data(dataset="wmt", dataset_config="de-en")
    with pytest.raises(DataError, match=r"data set wmt \(validation\) cannot be loaded: Unknown split"):
        load_corpus(data)
    hub["validation"] = [{"en": "three", "de": "drei"}]
    train, valid = load_corpus(data)
    assert train == Pairs(["one"], ["eins"], skipped=1)
    assert valid.target == ["drei"]
    with pytest.raises(DataError, match="row 1: no language 'fr'; there are: en, de"):
        load_corpus(Data(dataset="wmt", target="fr"))
    for row, message in (
        ({"en": "two"}, "row 2: no language 'de'; there are: en"),
        (None, "row 2: no language 'en'; there are: none"),
        ({"en": "two", "de": 2}, "row 2: 2 of 'de' is not a text"),
    ):
        hub["train"] = [{"en": "one", "de": "eins"}, row]
        with pytest.raises(DataError, match=rf"data set wmt \(train\), {message}"):
            load_corpus(data)
    hub["train"] = []
    with pytest.raises(DataError, match=r"empty corpus: no pair of sentences in data set wmt \(train\)"):
        load_corpus(data)


def test_long_pairs_are_left_out_and_counted() -> None:
    pairs = Pairs(["a b", "a b c d", "a"], ["a", "a", "a b c d e"], 0)
    tokenizer = train_bpe(pairs.source, 270)
    whole = TokenPairs.of(pairs, tokenizer)
    assert whole.lengths == [
        max(len(tokenizer(s).input_ids), len(tokenizer(t).input_ids))
        for s, t in zip(pairs.source, pairs.target, strict=True)
    ]
    some = TokenPairs.of(pairs, tokenizer, max_tokens=whole.lengths[0])
    assert len(some) == 1
    assert tokenizer.decode(some[0]["input_ids"], skip_special_tokens=True) == "a b"
    with pytest.raises(DataError, match="all 3 have more than 1 tokens"):
        TokenPairs.of(pairs, tokenizer, max_tokens=1)


def test_encoding_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["one", "two three", "", "four"]
    tokenizer = train_bpe(lines, 270)
    monkeypatch.setattr("floater.lab.text.bpe.ENCODED_AT_ONCE", 3)
    for row, line in zip(encode(tokenizer, lines), lines, strict=True):
        assert np.array_equal(row, tokenizer(line).input_ids)


def test_padding_is_masked_in_sources_and_ignored_in_labels() -> None:
    examples: list[Any] = [
        {"input_ids": [5, 6, 2], "labels": [7, 2]},
        {"input_ids": [5, 2], "labels": [7, 8, 9, 2]},
    ]
    batch = collate(examples, pad=0)
    assert batch["input_ids"].tolist() == [[5, 6, 2], [5, 2, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[7, 2, -100, -100], [7, 8, 9, 2]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.long}
