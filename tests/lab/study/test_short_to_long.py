"""Cutting data by length."""

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from floater.errors import DataError
from floater.lab.study import short_to_long
from floater.lab.study.grid import grid
from floater.lab.study.settings import ShortToLong
from floater.lab.study.short_to_long import cut, share_below, write
from floater.lab.tasks.corpora import cldr
from floater.lab.tasks.corpora.text import read_lines

from .small import settings

DATA = Path(os.environ.get("FLOATER_DATA", Path(__file__).parents[4] / "shared" / "data"))
WORDS = r"\w+(?:[-'’.]\w+)*|[^\w\s]"


def files(folder: Path, sources: list[str], targets: list[str] | None = None, name: str = "pool") -> Any:
    paths = [folder / f"{name}.en", folder / f"{name}.de"]
    for path, lines in zip(paths, (sources, targets or [f"{line} !" for line in sources]), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [str(paths[0])], [str(paths[1])]


@given(
    lengths=st.lists(st.integers(0, 12), min_size=8, max_size=60),
    seed=st.integers(0, 5),
    unique=st.booleans(),
)
@examples(max_examples=60)
def test_short_ones_train_and_long_ones_test(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], seed: int, unique: bool
) -> None:
    """Every pair is in one part, once; none that is validated or tested trains."""
    folder = tmp_path_factory.mktemp("cut")
    # few different words, so that sentences come back
    sources = [" ".join(["ab"[(i * i) % 2]] * length) for i, length in enumerate(lengths)]
    source, target = files(folder, sources)
    asked = ShortToLong(source=source, target=target, cut=6, valid=0.3, seed=seed, unique=unique)
    try:
        parts = cut(asked, "en", "de")
    except DataError:  # too few of a kind
        short = {text for text in sources if 0 < len(text.split()) < 6}
        assert round(0.3 * len(short)) in (0, len(short)) or max(lengths) < 6
        return
    train, valid, test = ([text for text, _ in parts[name]] for name in ("train", "valid", "lengths"))
    assert max(len(text.split()) for text in train + valid) < 6
    assert test[: len(valid)] == valid
    assert all(len(text.split()) >= 6 for text in test[len(valid) :])
    assert not set(train) & set(test)
    there = Counter(text for text in sources if text)
    assert Counter(train + test) == (Counter(there.keys()) if unique else there)
    assert all(pair[1] == f"{pair[0]} !" for part in parts.values() for pair in part)


def test_the_share_below_the_cut_is_told_as_in_the_paper(tmp_path: Path) -> None:
    lines = [f"{'a ' * length}{length}" for length in [3] * 7 + [9]] + [f"b {n}" for n in range(8)]
    source, target = files(tmp_path, lines)
    asked = ShortToLong(source=source, target=target, cut=8, unique=False)
    write(asked, tmp_path / "data", "en", "de")
    said = share_below(asked, tmp_path / "data")
    assert said is not None
    assert said.startswith("93.8% of 16 pairs have fewer than 8 tokens")  # 15 of 16
    assert "98.6%" in said
    assert share_below(ShortToLong(builtin=60), tmp_path / "data") is None


def test_the_share_below_the_cut_is_that_of_the_files_that_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = files(tmp_path, [f"a {n}" for n in range(9)] + ["i j k l"])
    held, aims = files(
        tmp_path, [f"b {n}" for n in range(30)] + [f"m n o {n}" for n in range(5)], name="test"
    )
    asked = ShortToLong(source=source, target=target, test_source=held, test_target=aims, cut=4, valid=0.3)
    read: list[str] = []
    monkeypatch.setattr(short_to_long, "read_lines", lambda path: read.append(path) or read_lines(path))
    write(asked, tmp_path / "data", "en", "de")
    assert sorted(read) == sorted(source + target + held + aims), "each file once"
    said = share_below(asked, tmp_path / "data")
    assert said is not None
    assert said.startswith("90.0% of 10 pairs have fewer than 4 tokens")


def test_files_that_only_test_do_not_train(tmp_path: Path) -> None:
    source, target = files(tmp_path, ["a b", "c d", "e f", "g h", "i j k l"])
    held, aims = files(tmp_path, ["canary", "a b", "m n o p q"], name="test")
    asked = ShortToLong(
        source=source, target=target, test_source=held, test_target=aims, skip={held[0]: 1, aims[0]: 1}, cut=4
    )
    asked = ShortToLong(**{**vars(asked), "valid": 0.4})
    parts = cut(asked, "en", "de")
    assert {text for text, _ in parts["train"] + parts["valid"]} == {"c d", "e f", "g h"}
    assert [text for text, _ in parts["lengths"]][1:] == ["m n o p q", "i j k l"]


def test_files_that_are_not_aligned_are_named(tmp_path: Path) -> None:
    source, target = files(tmp_path, ["a", "b c d", "e"])
    with pytest.raises(DataError, match=r"pool.de are not aligned: 2 and 3 lines, without 1 of .*pool.en"):
        cut(ShortToLong(source=source, target=target, cut=2, skip={source[0]: 1}), "en", "de")


def test_data_are_cut_once_and_not_in_two_ways(tmp_path: Path) -> None:
    asked = ShortToLong(builtin=30, builtin_test=2)
    data, test = write(asked, tmp_path / "data", "en", "de")
    scored = read_lines(test["source"])
    assert [len(cldr.tokens(text)) < asked.cut for text in scored] == [True] * 2 + [False] * 8
    assert not {*scored} & {*read_lines(data["valid_source"]), *read_lines(data["train_source"])}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").iterdir()}
    assert write(asked, tmp_path / "data", "en", "de") == (data, test)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").iterdir()} == before
    other = ShortToLong(builtin=31, builtin_test=2)
    with pytest.raises(DataError, match=r"another short_to_long.builtin, 30"):
        write(other, tmp_path / "data", "en", "de")
    write(other, tmp_path / "data", "en", "de", used=False)
    assert len(read_lines(data["train_source"])) == 31


def test_another_seed_draws_another_built_in_corpus() -> None:
    one, same, other = (cut(ShortToLong(builtin=30, builtin_test=2, seed=s), "en", "de") for s in (1, 1, 2))
    assert one == same
    assert not {*one["lengths"]} & {*other["lengths"]}


def test_other_sentences_in_the_same_files_are_cut_anew_or_refused(tmp_path: Path) -> None:
    def cut_of(count: int, used: bool) -> int:
        source, target = files(tmp_path, [f"a{i} b" for i in range(count)] + ["c d e f"])
        asked = ShortToLong(source=source, target=target, cut=4)
        data, _ = write(asked, tmp_path / "data", "en", "de", used=used)
        return len(read_lines(data["train_source"]))

    assert cut_of(20, used=False) == cut_of(20, used=True) == 18
    with pytest.raises(DataError, match="data that were cut with other contents of short_to_long"):
        cut_of(200, used=True)
    assert cut_of(200, used=False) == 180


def test_a_report_does_not_need_the_files_that_were_cut(tmp_path: Path) -> None:
    source, target = files(tmp_path, [f"a{i} b" for i in range(20)] + ["c d e f"])
    cut_of = {"source": source, "target": target, "cut": 4}
    asked = settings(tmp_path / "study", short_to_long=cut_of, bins=[4], seeds=[1], models={"none": {}})
    grid(asked, "here").write(threads=1)
    for path in source + target:
        Path(path).unlink()
    assert [trial.name for trial in grid(asked, "here", train=False).trials] == ["none-1"]
    with pytest.raises(DataError, match="data that were cut with other contents of short_to_long"):
        grid(asked, "here")


def test_text_of_other_scripts_is_cut_by_its_words_or_characters(tmp_path: Path) -> None:
    """Marks end no word of Hindi, and a Chinese sentence is no word: 2 or 3 units are short, 5 are long."""
    for short, long in (("हिन्दी {}", "यह हिन्दी है क्या {}"), ("猫{}", "我喜欢猫{}")):
        texts = [text.format(n) for text in (short, long) for n in range(10)]
        source, target = files(tmp_path, texts)
        parts = cut(ShortToLong(source=source, target=target, cut=4, valid=0.3), "hi", "en")
        assert {text for name in ("train", "valid") for text, _ in parts[name]} == {*texts[:10]}


def test_the_tokens_of_the_built_in_corpus_measure_it(tmp_path: Path) -> None:
    """Its folders of former versions, and their study.yaml, have the same record."""
    for token in (None, cldr.TOKEN):
        asked = ShortToLong(builtin=40, builtin_test=2, token=token)
        assert write(asked, tmp_path, "en", "de")[1]["token"] == cldr.TOKEN
    assert ShortToLong(token=cldr.TOKEN).token == cldr.TOKEN
    with pytest.raises(ValueError, match="token needs source, dataset or builtin"):
        ShortToLong(token="x")
    with pytest.raises(ValueError, match="leave out token"):
        ShortToLong(builtin=40, token="x")


@pytest.mark.skipif(not (DATA / "multi30k").is_dir(), reason="needs Multi30k")
def test_multi30k_has_as_many_long_captions_as_counted_by_hand() -> None:
    """20,380 below 15 words and punctuation marks, 6,644 / 1,599 / 377 from 15, 20 and 25 on."""
    source, target = ([str(DATA / "multi30k" / f"train.{side}.gz")] for side in ("en", "de"))
    asked = ShortToLong(source=source, target=target, cut=15, token=WORDS, unique=False)
    parts = cut(asked, "en", "de")
    lengths = [len(re.findall(WORDS, text)) for text, _ in parts["lengths"]]
    assert len(parts["train"]) + len(parts["valid"]) == 20_380
    assert sum(15 <= n < 20 for n in lengths) == 6_644
    assert sum(20 <= n < 25 for n in lengths) == 1_599
    assert sum(n >= 25 for n in lengths) == 377
