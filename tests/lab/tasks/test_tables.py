"""Tables of examples: the same rows from every kind of file, and errors that name their place."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from floater.errors import DataError
from floater.lab.tasks.corpora import documents, images
from floater.lab.tasks.corpora.splits import with_split
from floater.lab.tasks.corpora.tables import Table, is_table, read_table
from floater.lab.tasks.language_modeling.data import read_documents
from floater.lab.training.digests import digests

ROWS = [("NA", "007"), ("null", "2020-01-01"), ('said "so", twice', "1.0"), ("two\nlines\u2028end", "é")]
"""Cells that readers which guess types change."""


def delimited(rows: list[tuple[str, ...]], delimiter: str) -> str:
    stream = io.StringIO()
    csv.writer(stream, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    return stream.getvalue()


def write_kinds(folder: Path) -> list[str]:
    """Write `ROWS` in every kind of file, and return the sources."""
    import datasets

    rows = [("text", "label"), *ROWS]
    mappings = [dict(zip(rows[0], row, strict=True)) for row in ROWS]
    lines = "".join(json.dumps(row) + "\n" for row in mappings)
    texts = {
        "a.csv": delimited(rows, ","),
        "semicolons.csv": delimited(rows, ";"),
        "a.tsv": delimited(rows, "\t"),
        "a.jsonl": lines,
        "a.ndjson": f"\n{lines}\n",
        "lines.json": lines,
        "list.json": json.dumps(mappings, indent=1),
        "inner.json": json.dumps({"version": "1", "data": mappings}),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, pack in {
        "a.csv.gz": gzip.compress,
        "a.csv.bz2": bz2.compress,
        "a.csv.xz": lzma.compress,
    }.items():
        (folder / name).write_bytes(pack(texts["a.csv"].encode()))
    data = datasets.Dataset.from_list(mappings)
    data.to_parquet(folder / "a.parquet")
    datasets.DatasetDict(train=data, test=data.select([0])).save_to_disk(folder / "saved")
    (folder / "files").mkdir()
    (folder / "files" / "train.csv").write_text(texts["a.csv"], encoding="utf-8")
    sources = [*texts, "a.csv.gz", "a.csv.bz2", "a.csv.xz", "a.parquet", "saved:train", "files:train"]
    return [str(folder / name) for name in sources]


@pytest.mark.parametrize("special", ["a[1]", "a?", "a*"])
def test_a_file_is_the_one_that_is_named_and_not_one_that_its_name_matches(
    special: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.chdir(tmp_path)
    for name, text in (("a1", "decoy"), (special, "text")):
        Path(name).mkdir()
        for file in (f"{name}.parquet", f"{name}/train.parquet"):
            datasets.Dataset.from_list([{"text": text}]).to_parquet(file)
    assert read_table(f"{special}.parquet", ["text"]).texts("text") == ["text"]
    with pytest.raises(DataError, match="as a pattern; rename the folder"):
        read_table(f"{special}:train", ["text"])


def test_a_folder_of_data_is_written_in_any_way(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,1\n")
    monkeypatch.chdir(tmp_path)
    for folder in (".", "./", f"../{tmp_path.name}/", f"{tmp_path}//"):
        assert read_table(f"{folder}:train", ["text"]).texts("text") == ["a"]


def test_a_folder_within_one_with_brackets_is_refused_by_its_path(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a[1]" / "b").mkdir(parents=True)
    (tmp_path / "a[1]" / "b" / "train.csv").write_text("text,label\na,1\n")
    monkeypatch.chdir(tmp_path / "a[1]")
    with pytest.raises(DataError, match=r"^b:train: .* in .*/a\[1\]/b as a pattern"):
        read_table("b:train", ["text"])


def test_the_same_rows_are_read_from_every_kind_of_source(tmp_path: Path) -> None:
    for source in write_kinds(tmp_path):
        table = read_table(source, ["text", "label"])
        assert list(zip(table.texts("text"), table.labels(), strict=True)) == ROWS, source
        assert is_table(source)


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\ufeff"), min_size=1)


@given(
    rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=5),
    delimiter=st.sampled_from(",;|\t"),
)
def test_what_csv_writes_is_read_back(tmp_path_factory, rows, delimiter) -> None:
    file = tmp_path_factory.mktemp("tables") / ("a.tsv" if delimiter == "\t" else "a.csv")
    header = [("text", "label")]
    stream = io.StringIO()
    csv.writer(stream, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(
        header + rows
    )
    file.write_text(stream.getvalue(), encoding="utf-8")
    table = read_table(file, ["text", "label"])
    assert list(zip(*table.values.values(), strict=True)) == rows
    starts = [text.split("\n") for text in stream.getvalue().split("\n")]
    assert table.lines[0] == 2
    assert len(starts) > table.lines[-1]


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_lines_within_a_cell_end_alike_in_every_kind_of_file(tmp_path: Path, end: str) -> None:
    import datasets

    rows = [{"text": f"one{end}two{end}{end}three"}]
    (tmp_path / "a.jsonl").write_text(json.dumps(rows[0]) + "\n", encoding="utf-8")
    (tmp_path / "a.csv").write_bytes(delimited([("text",), (rows[0]["text"],)], ",").encode())
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    for kind in ("jsonl", "csv", "parquet"):
        assert read_table(tmp_path / f"a.{kind}", ["text"]).texts("text") == ["one\ntwo\n\nthree"]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "folder", "declared"])
def test_a_file_that_changed_is_read_anew_whatever_its_time(tmp_path: Path, kind: str) -> None:
    import datasets
    import pyarrow as pa

    file = tmp_path / ("a.arrow" if kind == "arrow" else "test.parquet")
    if kind == "declared":
        features = [{"name": "text", "dtype": "string"}, {"name": "label", "dtype": "string"}]
        card = json.dumps({"dataset_info": {"features": features}})
        (tmp_path / "README.md").write_text(f"---\n{card}\n---\n")
    source = tmp_path if kind in ("folder", "declared") else file
    for text in ("old", "new"):
        data = datasets.Dataset.from_dict({"text": [text], "label": ["1"]})
        if kind == "arrow":
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, data.data.schema) as writer:
                writer.write_table(data.data.table)
        else:
            data.to_parquet(file)
        os.utime(file, (1, 1))
        assert read_table(source, ["text"]).texts("text") == [text]


def test_columnar_files_keep_the_names_of_labels(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        text=datasets.Value("string"), label=datasets.ClassLabel(names=["no", "yes"])
    )
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    data.to_parquet(tmp_path / "a.parquet")
    data.save_to_disk(tmp_path / "saved")
    (arrow,) = (tmp_path / "saved").glob("*.arrow")
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    (tmp_path / "label=3").mkdir()
    data.to_parquet(tmp_path / "label=3" / "a.parquet")
    for file in (
        tmp_path / "a.parquet",
        tmp_path / "a.parquet.gz",
        tmp_path / "label=3" / "a.parquet",
        arrow,
    ):
        assert read_table(file, ["text", "label"]).labels() == ["yes", "no"]


def test_other_columns_of_a_parquet_file_are_not_read(tmp_path: Path) -> None:
    """`datasets` has no type for maps, and would refuse them."""
    import pyarrow as pa
    import pyarrow.parquet

    maps = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))
    table = pa.table({"a.b": ["x"], "text": ["t"], "label": ["l"], "spans": maps, "for": [{"text": "no"}]})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet", ["text", "label"]).texts("text") == ["t"]
    for column, text in (("a.b", "x"), ("for.text", "no")):
        assert read_table(tmp_path / "a.parquet", ["text"], {"text": column}).texts("text") == [text]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_missing_mapping_hides_no_column(tmp_path: Path, kind: str) -> None:
    import datasets

    rows: list[dict[str, Any]] = [{"translation": None}, {"translation": {"de": "ja", "en": "yes"}}]
    file = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        datasets.Dataset.from_list(rows).to_parquet(file)
    table = read_table(file, ["source"], {"source": "translation.en"})
    assert table.texts("source") == ["", "yes"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_a_column_may_be_within_mappings_of_mappings(tmp_path: Path, kind: str) -> None:
    import datasets

    rows: list[dict[str, Any]] = [
        {"a": {"b.c": "dotted", "b": {"text": "x", "label": 1}}},
        {"a": None},
        {"a": {"b.c": "dotted", "b": {"text": "y", "label": 1}}},
    ]
    text = datasets.Value("string")
    named = {"b.c": text, "b": {"text": text, "label": datasets.ClassLabel(names=["no", "yes"])}}
    data = datasets.Dataset.from_list(rows, features=datasets.Features(a=named))
    source = tmp_path / f"a.{kind}"
    if kind == "parquet":
        data.to_parquet(source)
    elif kind == "saved":
        data.save_to_disk(source)
    else:
        source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    columns = {"text": "a.b.text", "label": "a.b.label", "source": "a.b.c"}
    values = read_table(source, ["text", "label", "source"], columns).values
    assert values["text"] == ["x", None, "y"]
    assert values["source"] == ["dotted", None, "dotted"]
    assert values["label"] == ([1, None, 1] if kind == "jsonl" else ["yes", None, "yes"])
    with pytest.raises(DataError, match=r"no column 'a.b.txt', data.columns.text; did you mean 'a.b.text'"):
        read_table(source, ["text"], {"text": "a.b.txt"})


def test_a_folder_of_save_to_disk_is_no_data_set_of_the_hub(tmp_path: Path, monkeypatch) -> None:
    import datasets

    monkeypatch.chdir(tmp_path)
    datasets.Dataset.from_list([{"text": "a"}]).save_to_disk("saved")
    with pytest.raises(DataError, match="hf:saved: saved is a folder written by save_to_disk; leave out hf:"):
        read_table("hf:saved", ["text"])


def test_quotes_of_a_tsv_that_enclose_no_cell_are_literal(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text('text\tlabel\n"Hi" he said\t1\n"all"\t0\n')
    assert read_table(file, ["text"]).values["text"] == ['"Hi" he said', '"all"']


def test_a_quoted_cell_of_a_tsv_may_have_tabs_and_lines_that_are_no_rows(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text('text\tlabel\n"one\nof\tthree\nlines"\t1\n')
    assert read_table(file, ["text", "label"]).values == {"text": ["one\nof\tthree\nlines"], "label": ["1"]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,label\nfine,1\nbad\n", "a.csv, line 3: 1 cell, but the header has 2"),
        ("a.csv", b"text,label\na,b,1\n", "line 2: 3 cells.*a cell with the delimiter in it needs quotes"),
        ("a.csv", b'text,label\n"two\nlines",1\n"open,1\n', "line 4: a quote is never closed"),
        ("a.csv", b'text,label\n"a"b,1\n', "line 2: .*a quote within a cell is written twice"),
        (
            "a.csv",
            b"text,label\na\rb,1\n",
            "line 2: a carriage return within a cell; put quotes around the cell",
        ),
        ("a.tsv", b"text\tlabel\na\rb\t1\n", "line 2: a carriage return within a cell; remove it"),
        ("a.csv", b'label, text\n1, "b c"\n', "a.csv, line 2, column 'text': a blank precedes the quote of"),
        ("a.csv", b'label;text\n1;\t"b; c"\n', "line 2, column 'text': a blank precedes the quote of"),
        ("a.csv", b'label,text\n1,a\n1, "b,\nc"\n', "line 3, column 'text': a blank precedes the quote of"),
        ("a.csv", b'label, "text"\n1,a\n', "line 1, column '\"text\"': a blank precedes the quote of"),
        ("a.csv", b"TEXT,label,Text\na,1,b\n", "columns 'TEXT' and 'Text' may both be that of role 'text'"),
        ("a.jsonl", b'{"text": "a", "Label": 1, "LABEL": 2}', "columns 'Label' and 'LABEL' may both be that"),
        ("a.csv", b"text,label\nsch\xf6n,1\n", "line 2: not UTF-8"),
        ("a.csv", b"a,b\n1,2\n", "no column 'text' or the like; there are: 'a', 'b'; choose one"),
        ("a.csv", b"text,text\na,b\n", "line 1: two columns are named 'text'"),
        ("a.csv", b"", "a.csv: the table has no row"),
        ("a.csv", b"text,label\n", "a.csv: the table has no row"),
        ("a.csv", b"text,label\na,\n", "line 2, column 'label': there is no label"),
        ("a.csv", b"PK\x03\x04", r"an archive \(.zip, or .xlsx, .docx\), not text; unpack it"),
        ("a.csv", b"(\xb5/\xfd\x04a", r"compressed by Zstandard \(.zst\), not text"),
        ("a.csv", b"7z\xbc\xaf'\x1c\0\x04", r"an archive \(.7z\), not text"),
        ("a.csv.gz", b"text,label\n", "not a gzip file, though its name ends in .gz"),
        ("a.csv.bz2", bz2.compress(b"text,label\na,1\n")[:-9], "corrupt bzip2 file"),
        ("a.csv.xz", lzma.compress(b"text,label\na,1\n")[:-9], "corrupt xz file"),
        (
            "a.tsv",
            b'text\tlabel\n"I am.\t1\nI was."\t0\n',
            "line 2: a quotation with a tab and a line break is",
        ),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": "b"}\n', "line 2: no 'label'; it has 'text'"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text"\n', "line 2, column 8: not JSON"),
        ("a.jsonl", b'["a"]\n', "line 1: .* is not a row"),
        ("a.jsonl", b'{"text": 5, "label": 1}\n', "line 1, column 'text': 5 is not a text"),
        ("a.jsonl", b'{"text": "a", "label": [1]}\n', r"line 1, column 'label': \[1\] is not a label"),
        ("a.jsonl", b'{"text": "a", "label": 3.5}\n', "3.5 is not a label; .* a text or a whole number"),
        ("a.jsonl", b'{"text": "\\ud800", "label": 1}\n', r"line 1: \\ud800 is half of a character"),
        ("a.json", b"5", "no list of rows"),
        ("a.json", b'[{"text": "a", "label": null}]', "row 1, column 'label': there is no label"),
        ("a.parquet", b"PAR1", "a.parquet: cannot be loaded"),
    ],
)
def test_an_error_names_file_line_and_column(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        (table := read_table(tmp_path / name, ["text", "label"])).texts("text") and table.labels()
    assert str(tmp_path / name) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nosuch.csv", "No such file"),
        ("nosuch.parquet", "No such file"),
        ("saved:tset", "no split 'tset'; there are: train, test; choose one: .*saved:train"),
        ("saved:valid", "saved: no split 'validation'; there are: train, test; choose one: .*saved:train$"),
        ("empty", "cannot be loaded"),
        ("hf:a/b/c/d", "not of the form hf:NAME"),
    ],
)
def test_a_source_that_is_not_there_is_named(tmp_path: Path, monkeypatch, source: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_kinds(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=message):
        read_table(source, ["text"])


def test_columns_are_those_that_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("Text,body,stars\nno,yes,5\n")
    assert read_table(file, ["text"]).values["text"] == ["no"]
    assert read_table(file, ["text"], {"text": "body"}).values["text"] == ["yes"]
    with pytest.raises(DataError, match=r"no column 'bdy', data.columns.text; did you mean 'body'\?"):
        read_table(file, ["text"], {"text": "bdy"})
    with pytest.raises(DataError, match=r"has 'txt', which this task does not read; did you mean 'text'\?"):
        read_table(file, ["text"], {"txt": "body"})
    with pytest.raises(DataError, match="names 'body' for both 'label' and 'text'"):
        read_table(file, ["text", "label"], {"label": "body", "text": "body"})


@pytest.mark.parametrize("header", ["text,label,Text", "Text,label,text", " TEXT,label,text"])
def test_a_column_with_the_exact_name_goes_before_others(tmp_path: Path, header: str) -> None:
    cells = ",".join("exact" if name == "text" else "other" for name in header.split(","))
    (tmp_path / "a.csv").write_text(f"{header}\n{cells}\n")
    assert read_table(tmp_path / "a.csv", ["text", "label"]).values["text"] == ["exact"]


def test_unnamed_columns_at_the_end_are_not_read(tmp_path: Path) -> None:
    """Spreadsheets write them, where cells beside the table were once filled."""
    file = tmp_path / "a.csv"
    file.write_text("text,label,,\ngood,1,,\nbad,0,,\n")
    table = read_table(file, ["text", "label"])
    assert table.values == {"text": ["good", "bad"], "label": ["1", "0"]}


def test_a_quoted_cell_may_begin_with_a_blank_and_a_quote(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,label\n" ""b"" c",1\n b "c" ,1\n')
    assert read_table(tmp_path / "a.csv", ["text", "label"]).values["text"] == [' "b" c', ' b "c" ']


def test_the_place_of_a_row_of_several_files_is_that_in_its_file() -> None:
    parts = [Table(name, {"text": "body"}, {"text": ["a", "b"]}, [2, 5]) for name in ("one", "two")]
    table = Table("both", {"text": "body"}, {"text": ["a", "b", "a", "b"]}, parts=parts)
    assert [table.where(row, "text") for row in (1, 2)] == [
        "one, line 5, column 'body'",
        "two, line 2, column 'body'",
    ]


def test_a_document_of_a_language_model_is_a_row_or_the_rows_of_one(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = [{"doc": 1, "text": "one\n\ntwo"}, {"doc": 1, "text": "three"}, {"doc": 2, "text": "four"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    name = str(file)
    assert read_documents(name, "blank line") == [["one", "two", "three"], ["four"]]
    assert read_documents(name, "line") == [["one"], ["two"], ["three"], ["four"]]
    assert read_documents(name, "file") == [["one", "two", "three", "four"]]
    rows = [{"text": "one"}, {"doc": 1, "text": "two"}, {"doc": 1, "text": "three"}]  # the first has none
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_documents(name, "blank line") == [["one"], ["two", "three"]]
    plain = tmp_path / "a.txt"
    plain.write_text("one\n")
    with pytest.raises(DataError, match="plain text, without the columns"):
        read_documents(str(plain), "line", {"text": "body"})


def test_json_under_the_name_of_plain_text_is_said(tmp_path: Path, caplog) -> None:
    file = tmp_path / "a.txt"
    file.write_text('{"text": "one"}\n')
    assert read_documents(str(file), "line") == [['{"text": "one"}']]
    assert "name it .jsonl" in caplog.text


def test_a_split_of_a_folder_is_compared_by_the_files_of_the_folder(tmp_path: Path) -> None:
    write_kinds(tmp_path)
    folder = tmp_path / "files"
    source = with_split(str(folder), "train")
    before = digests({"data.train": source})
    assert len(before["data.train"]) == 1
    (folder / "train.csv").write_text("text,label\nother,1\n")
    assert digests({"data.train": source}) != before


def test_names_of_classes_are_the_same_in_every_unicode_form(tmp_path: Path) -> None:
    """Names of files that macOS has packed are in form NFD, and look the same."""
    forms = [unicodedata.normalize(form, "café") for form in ("NFC", "NFD")]
    rows = "".join(f"a,{form}\n" for form in forms)
    (tmp_path / "a.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    assert {*read_table(tmp_path / "a.csv", ["text", "label"]).labels()} == {forms[0]}
    for form in forms:
        (tmp_path / "d" / form).mkdir(parents=True)
        (tmp_path / "d" / form / f"{len(form)}.txt").write_text("a", encoding="utf-8")
        (tmp_path / "i" / form).mkdir(parents=True)
        Pillow.new("L", (4, 4)).save(tmp_path / "i" / form / "1.png")
    read = documents.read_documents(tmp_path / "d"), images.read_images(tmp_path / "i", "test", 1)
    assert [{each.label for each in several} for several in read] == [{forms[0]}] * 2
