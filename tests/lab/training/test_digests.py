"""Other contents under the same names are noticed."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from floater.lab.training import contents as module
from floater.lab.training.contents import Part, Source, contents, references
from floater.lab.training.digests import changed, digests, values_digest


def test_directories_that_changed_are_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "reviews" / "good"
    folder.mkdir(parents=True)
    (folder / "1.txt").write_text("a", encoding="utf-8")
    options = {"train": str(tmp_path / "reviews"), "window": 5}
    record = digests(options)
    assert record.keys() == {"train"}
    assert changed(record, options) is None
    (folder / "1.txt").write_text("b", encoding="utf-8")
    assert changed(record, options) == "train"
    (folder / "1.txt").write_text("a", encoding="utf-8")
    assert changed(record, options) is None
    folder.rename(folder.with_name("bad"))  # the label is the name
    assert changed(record, options) == "train"


def of(path: Path | Part, before: Any = None) -> Source:
    (source,) = contents({"data.train": path}, before)["data.train"]
    return source


@pytest.mark.parametrize("settled", [True, False])
def test_an_old_file_is_read_once_and_a_change_under_the_same_size_and_time_is_noticed(
    settled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SETTLED", -(10**18) if settled else 10**18)
    file = tmp_path / "a"
    file.write_text("one\n", encoding="utf-8")
    times = file.stat()
    before = contents({"data.train": file})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *args: 1 / 0)
        with nullcontext() if settled else pytest.raises(ZeroDivisionError):
            assert contents({"data.train": file}, before) == before
    file.write_text("two\n", encoding="utf-8")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    (now,) = contents({"data.train": file}, before)["data.train"]
    assert before["data.train"][0].changes(now) == [f"{file} has changed (1 lines as before)"]


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    for name in ("data/a", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "elsewhere" / "1.txt").write_text("a", encoding="utf-8")
    (tmp_path / "data" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "a" / "up").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "a" / "broken").symlink_to(tmp_path / "nothing")
    files = of(tmp_path / "data").files
    assert files is not None
    assert {name for name in files if "up" not in name} == {"b/1.txt"}
    assert of(Part(tmp_path / "data", ("*/*",))).files.keys() == {"b/1.txt"}  # type: ignore[union-attr]


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert of(tmp_path / "pipe").files.keys() == {""}  # type: ignore[union-attr]


def test_bytes_are_counted_where_there_are_no_lines(tmp_path: Path) -> None:
    texts = {"": 0, "a": 1, "a\n": 1, "a\n\nb": 3, "\0a": None}
    for text, lines in texts.items():
        (tmp_path / "a").write_text(text, encoding="utf-8")
        file = of(tmp_path / "a").files[""]  # type: ignore[index]
        assert (file.size, file.lines) == (len(text), lines)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
NESTED = st.recursive(PLAIN, lambda part: st.lists(part) | st.dictionaries(st.text(), part), max_leaves=8)


@given(NESTED, NESTED)
def test_values_have_one_digest_if_they_are_written_alike(one: Any, other: Any) -> None:
    assert (values_digest(one) == values_digest(other)) == (repr(one) == repr(other))


def test_arrays_are_compared_by_type_shape_and_values() -> None:
    array = np.arange(6)
    others = [array.reshape(2, 3), array.astype(np.int32), array + 1, array.tolist(), [array, array]]
    assert len({values_digest(each) for each in (array, *others)}) == 6
    assert values_digest(torch.arange(6)) == values_digest(array)
    assert values_digest(np.array([object()])) is None
    assert values_digest(i for i in range(3)) is None


def test_tensors_of_bfloat16_have_a_digest() -> None:
    """NumPy has no such type; shape, type and each value count."""
    ones = torch.ones(2, 3, dtype=torch.bfloat16)
    others = [ones.clone(), ones.T.contiguous(), ones.half(), ones + torch.eye(2, 3), ones.view(torch.int16)]
    digests = [values_digest(value) for value in (ones, *others)]
    assert digests[0] == digests[1]
    assert len({*digests}) == len(others)
    assert None not in digests
    assert values_digest(torch.tensor(1.0, dtype=torch.bfloat16)) is not None


@pytest.mark.parametrize("written", ["{}:test", "{}/:test", "./{}//:test"])
def test_a_part_is_the_same_however_its_folder_is_written(tmp_path: Path, monkeypatch, written: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test.csv").write_text("text\na\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (reference,), (plain,) = references(written.format("data")), references("data:test")
    assert reference == plain
    assert reference.part == ":test"
