"""From text files to batches: packing and masking against what the words say."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floater.errors import DataError
from floater.lab.tasks.language_modeling.data import (
    Rows,
    begin_id,
    causal_batch,
    collate,
    encode_documents,
    joined,
    masked,
    masked_batch,
    read_documents,
    with_mask,
)
from floater.lab.tasks.language_modeling.settings import Masking
from floater.lab.text.bpe import train_bpe

BEGIN = 1


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ("blank line", [["one", "two"], ["three"], ["four"]]),
        ("line", [["one"], ["two"], ["three"], ["four"]]),
        ("file", [["one", "two", "three"], ["four"]]),
    ],
)
def test_where_documents_end(tmp_path: Path, ends: str, expected: list[list[str]]) -> None:
    (tmp_path / "a.txt").write_text("\none\ntwo\n\n  \nthree\n", encoding="utf-8")
    with gzip.open(tmp_path / "b.gz", "wt", encoding="utf-8") as file:
        file.write("four\n\n")
    assert read_documents([str(tmp_path / "a.txt"), str(tmp_path / "b.gz")], ends) == expected


def test_text_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    with pytest.raises(DataError, match=r"empty corpus: no text in .*empty\.txt"):
        read_documents(str(tmp_path / "empty.txt"), "line")
    with pytest.raises(DataError, match="no file"):
        read_documents([], "line")


sentences = st.lists(st.integers(10, 99), min_size=1, max_size=30)
texts = st.lists(st.lists(sentences, min_size=1, max_size=5), min_size=1, max_size=6)


@settings(deadline=None)
@given(texts, st.integers(8, 20), st.booleans())
def test_rows_hold_every_token_in_order_in_whole_sentences(
    written: list[list[list[int]]], block: int, pack: bool
) -> None:
    documents = [[np.array([*sentence, 2]) for sentence in document] for document in written]
    rows = Rows.of(documents, block, begin=BEGIN, pack=pack)
    parts = []
    for row in rows:
        assert len(row["input_ids"]) == sum(row["parts"]) <= block
        assert pack or len(row["parts"]) == 1
        parts += [part.tolist() for part in np.split(row["input_ids"], np.cumsum(row["parts"])[:-1])]
    assert all(part[0] == BEGIN and len(part) > 1 and BEGIN not in part[1:] for part in parts)
    flat = [token for document in documents for sentence in document for token in sentence]
    assert [token for part in parts for token in part[1:]] == flat
    # parts of different documents are never one
    ends = np.cumsum([sum(map(len, document)) for document in documents])
    assert set(ends) <= set(np.cumsum([len(part) - 1 for part in parts]))
    short = all(len(sentence) < block for document in documents for sentence in document)
    assert (rows.cut == 0) == short
    if short:  # then a row ends with the end of a sentence
        assert all(part[-1] == 2 for part in parts)
    assert rows.lengths == [len(row["input_ids"]) for row in rows]
    assert rows.tokens == len(flat) + len(parts)


def test_a_row_is_as_full_as_whole_sentences_make_it() -> None:
    documents = [[np.array([5, 6, 2]), np.array([7, 2])], [np.array([8, 2])], [np.array([9, 9, 9, 2])]]
    rows = Rows.of(documents, 9, begin=BEGIN)
    assert [row["parts"] for row in rows] == [[6, 3], [5]]


def test_rows_of_a_table_without_a_document_are_documents(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.csv").write_text("text,document\none,\ntwo,\n,\nthree,a\nfour,a\nfive,b\n")
    expected = [["one"], ["two"], ["three", "four"], ["five"]]
    assert read_documents(str(tmp_path / "a.csv"), "blank line") == expected
    assert f"{tmp_path / 'a.csv'}: 1 rows without a text are skipped" in caplog.text


def test_a_batch_says_which_tokens_share_a_document() -> None:
    rows = Rows.of([[np.array([5, 2])], [np.array([6, 2])], [np.array([7, 8, 9, 9, 2])]], 8, begin=BEGIN)
    batch = causal_batch([rows[0], rows[1]], pad=0, begin=BEGIN)
    assert batch["input_ids"].tolist() == [[1, 5, 2, 1, 6, 2], [1, 7, 8, 9, 9, 2]]
    assert batch["labels"].tolist() == [[-100, 5, 2, -100, 6, 2], [-100, 7, 8, 9, 9, 2]]
    assert batch["document_ids"].tolist() == [[0, 0, 0, 1, 1, 1], [0] * 6]
    assert "document_ids" not in collate([rows[1]], pad=0)  # one document a row needs none


TOKENIZER = with_mask(train_bpe(["low lower lowest newest widest"], 270))
SPECIAL = set(TOKENIZER.all_special_ids)


def test_the_mask_is_the_last_token_of_the_vocabulary_and_stays_it(tmp_path: Path) -> None:
    from floater.lab.text.bpe import load_bpe

    assert TOKENIZER.mask_token_id == len(TOKENIZER) - 1
    TOKENIZER.save_pretrained(tmp_path)
    again = with_mask(load_bpe(tmp_path))
    assert (again.mask_token_id, len(again)) == (TOKENIZER.mask_token_id, len(TOKENIZER))
    ids = again("low <mask> low").input_ids
    assert again.mask_token_id not in ids, "what a text says is text"


def test_fifteen_per_cent_are_predicted_as_eighty_ten_ten() -> None:
    draw = np.random.default_rng(0)
    read_as = {"mask": 0, "random": 0, "same": 0}
    for index in range(400):
        plain = draw.integers(3, len(TOKENIZER) - 1, size=100)
        ids = np.concatenate([[1], plain, [2]])
        read, labels = masked(ids, Masking(), TOKENIZER, 7, index)
        chosen = labels != -100
        assert chosen.sum() == 15
        assert not chosen[[0, -1]].any()
        assert (labels[chosen] == ids[chosen]).all()
        assert (read[~chosen] == ids[~chosen]).all()
        masks = read[chosen] == TOKENIZER.mask_token_id
        same = read[chosen] == ids[chosen]
        read_as["mask"] += masks.sum()
        read_as["same"] += same.sum()
        read_as["random"] += (~masks & ~same).sum()
        assert not SPECIAL - {TOKENIZER.mask_token_id} & set(read[chosen])
    shares = {name: count / 6000 for name, count in read_as.items()}
    assert shares["mask"] == pytest.approx(0.8, abs=0.02)
    assert shares["random"] == pytest.approx(0.1, abs=0.02)  # less one in 267 that is drawn itself
    assert shares["same"] == pytest.approx(0.1, abs=0.02)


def test_random_tokens_are_any_but_special_ones() -> None:
    ids = np.full(20_000, 50)
    read, _ = masked(ids, Masking(rate=1, mask=0, random=1), TOKENIZER, 0)
    assert set(read) == set(range(len(TOKENIZER))) - SPECIAL


def test_masks_are_a_function_of_seed_and_row_alone() -> None:
    documents = encode_documents(TOKENIZER, [["low lower lowest newest"] * 4])
    rows = Rows.of(documents, 16, begin=begin_id(TOKENIZER))

    def labels(indices: list[int], *seed: int) -> list[torch.Tensor]:
        batch = masked_batch([rows[i] for i in indices], Masking(), TOKENIZER, seed)
        return [row[row != -100] for row in batch["labels"]]

    together, alone = labels([0, 1, 2], 3, 0), [labels([i], 3, 0)[0] for i in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))
    epochs = [masked_batch([rows[0]], Masking(), TOKENIZER, (3, epoch))["input_ids"] for epoch in range(5)]
    assert len({tuple(ids[0].tolist()) for ids in epochs}) > 1
    state = torch.get_rng_state()
    labels([0], 0)
    assert torch.equal(state, torch.get_rng_state())


def test_one_token_is_masked_at_least_and_special_ones_never() -> None:
    assert (masked(np.array([1, 50, 2]), Masking(), TOKENIZER, 0)[1] != -100).sum() == 1
    assert (masked(np.array([1, 2]), Masking(), TOKENIZER, 0)[1] != -100).sum() == 0


def test_full_sentences_cross_the_borders_of_documents_and_lose_nothing() -> None:
    """As documents would, but for one more end between two of them and no part of a row."""
    sentences = [[[*[10 + i] * (length - 1), 2] for length in (5, 4)] for i in range(3)]
    documents = [[np.array(sentence) for sentence in document] for document in sentences]
    rows = Rows.of([joined(documents, 2)], 12, begin=1)
    read = [token for row in rows for token in row["input_ids"].tolist() if token != 1]
    assert read == [
        *sentences[0][0], *sentences[0][1], 2, *sentences[1][0], *sentences[1][1], 2, *sentences[2][0],
        *sentences[2][1],
    ]  # fmt: skip
    assert all(len(row["parts"]) == 1 for row in rows)
    assert "document_ids" not in collate([rows[0], rows[1]], pad=0)
