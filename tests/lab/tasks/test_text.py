import gzip
import io
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from floater.errors import DataError
from floater.lab.tasks.corpora.text import Pairs, decode_lines, read_json, read_lines, read_pairs

MARK = "\ufeff"
# A line may hold anything but its own end and NUL; a mark at its start is dropped, and has its own test.
LINES = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\n\0")).filter(
        lambda line: not line.endswith("\r") and not line.startswith(MARK)
    )
)


@pytest.fixture
def write(tmp_path):
    def write(name: str, content: str | bytes) -> os.PathLike[str]:
        file = tmp_path / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    return write


@given(lines=LINES, end=st.sampled_from(["\n", "\r\n"]), mark=st.booleans(), zipped=st.booleans())
@example(lines=["a\u2028b", "c\x85d", "e\x0bf\x0cg\x1ch\rj"], end="\n", mark=False, zipped=False)
@example(lines=["\r0"], end="\n", mark=False, zipped=False)
@example(lines=[], end="\n", mark=True, zipped=False)
@example(lines=[""], end="\r\n", mark=True, zipped=True)
def test_written_lines_are_read_back(tmp_path_factory, lines, end, mark, zipped):
    content = (MARK * mark + "".join(line + end for line in lines)).encode()
    file = tmp_path_factory.mktemp("corpus") / "lines"
    file.write_bytes(gzip.compress(content) if zipped else content)
    assert read_lines(file) == lines


def test_last_line_may_lack_its_end(write):
    assert read_lines(write("a", "one\ntwo")) == ["one", "two"]
    assert read_lines(str(write("b", ""))) == []


@pytest.mark.parametrize("parts", [["one\n", "two\n"], ["one\n", "", "two\n", ""], ["", ""], ["\n", "two"]])
def test_files_with_marks_may_be_joined(write, parts):
    joined = "".join(MARK + part for part in parts)
    assert (
        read_lines(write("a", joined))
        == "".join(parts).split("\n")[: joined.count("\n") + joined[-1].isalpha()]
    )
    assert read_lines(write("b", f"one{MARK}two\n")) == [f"one{MARK}two"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "utf-16", "utf-32"])
@pytest.mark.parametrize("text", ["Guten Tag.\nJa.\n", "Schöne Grüße\n"])
def test_other_encodings_are_named(write, encoding, text):
    name = encoding.upper().removesuffix("-LE").removesuffix("-BE")
    with pytest.raises(
        DataError, match=f"a, line 1: not .*it looks like {name}; convert it: iconv -f {name}"
    ):
        read_lines(write("a", text.encode(encoding)))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@given(text=st.text(st.characters(codec="utf-8")))
def test_no_line_of_another_encoding_is_read(encoding, text):
    with pytest.raises(DataError, match=r"here, line [0-9]+: not UTF-8"):
        decode_lines(io.BytesIO(f"{text}\n".encode(encoding)), "here")


def test_carriage_returns_alone_are_no_lines(write):
    with pytest.raises(DataError, match="a: its lines end in carriage returns alone"):
        read_lines(write("a", "one\rtwo\r"))
    assert read_lines(write("b", "one\rtwo\nthree\n")) == ["one\rtwo", "three"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (r'["\ud800"]', r"line 1: \\ud800 is half of a character"),
        ('[\n"\\udc00\\ud800"]', r"line 2: \\udc00 is half of a character"),
        ("[" * 10**5, "not JSON that can be read"),
        ("9" * 10**4, "not JSON that can be read"),
        ('[{"a": 1, "b": {"c": 1, "a": 2, "c": 3}}]', "an object has 'c' twice"),
    ],
)
def test_json_that_holds_no_text_is_refused(write, text, message):
    with pytest.raises(DataError, match=message):
        read_json(write("a.json", text))


@given(value=st.recursive(st.text(st.characters(codec="utf-8")), st.lists, max_leaves=5), ascii=st.booleans())
def test_written_json_is_read_back(tmp_path_factory, value, ascii):
    file = tmp_path_factory.mktemp("json") / "a.json"
    file.write_text(json.dumps(value, ensure_ascii=ascii), encoding="utf-8")
    assert read_json(file) == value


def test_gzip_that_would_fill_the_memory_is_refused(write):
    """Zeros take a thousandth; they have no line end, either."""
    bomb = gzip.compress(bytes(2**27), mtime=0)
    with pytest.raises(DataError, match=r"bomb.gz: it unpacks to more than [\d,]+ bytes, too many for"):
        read_lines(write("bomb.gz", bomb))


def test_a_pipe_of_gzip_has_no_size_that_bounds_its_text():
    line = "x" * 2**20
    packed = gzip.compress(f"{line}\n".encode() * 65, mtime=0)  # more than 64 MiB
    reader, writer = os.pipe()

    def write() -> None:
        with open(writer, "wb") as file:
            file.write(packed)

    with ThreadPoolExecutor() as pool:
        pool.submit(write)
        assert read_lines(f"/dev/fd/{reader}") == [line] * 65
    os.close(reader)


def test_gzip_of_several_members_is_read_whole(write):
    assert read_lines(write("a.gz", gzip.compress(b"one\ntw") + gzip.compress(b"o\n"))) == ["one", "two"]


# the time inside a gzip file would give the cases other names in each test process
SOUND = gzip.compress(b"a sentence\n" * 50, mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("latin1", b"ja\nsch\xf6n\nnein\n", "line 2: not UTF-8"),
        ("latin1.gz", gzip.compress(b"ja\nja\r\n\xff", mtime=0), "line 3: not UTF-8"),
        ("utf16", "ja".encode("utf-16"), "line 1: not UTF-8"),
        ("surrogate", b"\xed\xa0\x80\n", "line 1: not UTF-8"),
        ("truncated.gz", SOUND[:-12], "corrupt gzip"),
        ("checksum.gz", SOUND[:-8] + bytes(4) + SOUND[-4:], "corrupt gzip"),
        ("stream.gz", SOUND[:12] + b"\xff\xff\xff" + SOUND[15:], "corrupt gzip"),
        ("plain.gz", b"not packed\n", "not a gzip file"),
        ("empty.GZ", b"", "not a gzip file"),
    ],
)
def test_broken_file_is_named_in_one_line(write, name, content, message):
    file = write(name, content)
    with pytest.raises(DataError, match=message) as caught:
        read_lines(file)
    assert str(file) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_missing_file_and_directory_are_data_errors(tmp_path):
    with pytest.raises(DataError, match=r"absent: cannot be read \(No such file"):
        read_lines(tmp_path / "absent")
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory"):
        read_lines(tmp_path)


def test_pairs_with_an_empty_side_are_skipped_and_counted(write):
    source = write("en", "one\n\nthree\n \t\u3000\nfive\n")
    target = write("de", "eins\nzwei\n\n\nfünf\n")
    assert read_pairs(source, target) == Pairs(["one", "five"], ["eins", "fünf"], skipped=3)


def test_evaluation_keeps_every_line_in_its_place(write):
    source, target = write("en", "one\n\nthree\n"), write("de", "eins\nzwei\n\n")
    kept = read_pairs(source, target, skip_empty=False)
    assert kept == Pairs(["one", "", "three"], ["eins", "zwei", ""], skipped=0)


def test_line_separators_inside_a_line_do_not_break_the_alignment(write):
    source, target = write("en", "a\u2028b\nc\n"), write("de", "x\x0cy\nz\r\n")
    assert read_pairs(source, target) == Pairs(["a\u2028b", "c"], ["x\x0cy", "z"], skipped=0)


def test_different_counts_name_both_files_and_counts(write):
    source, target = write("en", "one\ntwo\n"), write("de", "eins\n")
    with pytest.raises(DataError) as caught:
        read_pairs(source, target)
    message = str(caught.value)
    assert str(source) in message
    assert str(target) in message
    assert "2 and 1 lines" in message


@pytest.mark.parametrize(("source", "skip_empty"), [("", True), ("", False), ("\n\n", True)])
def test_empty_corpus_is_an_error(write, source, skip_empty):
    with pytest.raises(DataError, match="empty corpus"):
        read_pairs(write("en", source), write("de", source), skip_empty=skip_empty)


def test_a_nul_in_other_text_is_to_be_removed(write):
    with pytest.raises(DataError, match=r"a, line 2: .* NUL bytes\); remove them: tr -d '\\0'$"):
        read_lines(write("a", "Guten Tag.\nAuf\0Wiedersehen.\n"))
