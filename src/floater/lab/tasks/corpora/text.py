"""Plain text corpora: one sentence per line, source and target aligned by line number."""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from floater.errors import DataError, first_line

PACKED: dict[str, tuple[str, bytes, Callable[[Any], Any]]] = {
    ".gz": ("gzip", b"\x1f\x8b", gzip.open),
    ".bz2": ("bzip2", b"BZh", bz2.open),
    ".xz": ("xz", b"\xfd7zXZ\0", lzma.open),
}
"""Name, magic number and reader of each kind of compressed file, by the ending of its name."""
ZIP_MAGIC = b"PK\x03\x04"
_PACKED_OTHERWISE = {
    ZIP_MAGIC: "an archive (.zip, or .xlsx, .docx)",
    b"7z\xbc\xaf'\x1c": "an archive (.7z)",
    b"Rar!\x1a\x07": "an archive (.rar)",
    b"(\xb5/\xfd": "compressed by Zstandard (.zst)",
    b'\x04"M\x18': "compressed by LZ4 (.lz4)",
    b"\x1f\x9d": "compressed by compress (.Z)",
}
"""Kinds of files that are refused, by their magic numbers."""
MOST_RATIO = 200
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PAIR = re.compile(r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HALF = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
"""Escapes of JSON for a character beyond U+FFFF (or for a backslash), and for half of one."""

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Pairs:
    """Aligned sentences, `source[i]` with `target[i]`; `skipped` pairs had an empty side.

    `fields` are those of the positions of the sources that a table holds
    (`floater.lab.tasks.translation.fields.SourceFields`).
    """

    source: Sequence[str]
    target: Sequence[str]
    skipped: int
    fields: Any = None


def read_lines(path: Path) -> list[str]:
    r"""Read the lines of a UTF-8 text file, plain or compressed.

    Only `\n` and `\r\n` end a line: the other characters that `str.splitlines` breaks at (form feed, U+0085,
    U+2028 and so on) stay in the line, so that two aligned files stay aligned. A byte-order mark at the start
    of a line, which files have that were joined from several, is dropped. A file is compressed by gzip, bzip2
    or xz if it starts with their magic number; a file named `.gz`, `.bz2` or `.xz` must be.

    Args:
        path: path of the file.

    Returns:
        The lines without their ends.

    Raises:
        DataError: if the file cannot be read, is not UTF-8, has a NUL or no end of a line but carriage
            returns, or is a corrupt compressed file or one that unpacks to far more bytes than text does.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "corpus.de")
        ...     _ = file.write_bytes(b"Guten Tag.\r\nAuf Wiedersehen.\n")
        ...     read_lines(file)
        ['Guten Tag.', 'Auf Wiedersehen.']
    """
    return list(iter_lines(path))


def iter_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file one by one, as `read_lines` reads them.

    Raises:
        DataError: see `read_lines`.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            yield from lines_of_file(file, name)
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror or error})") from error


def lines_of_file(file: Any, name: str) -> Iterator[str]:
    """Yield the lines of a file that is open in binary mode, as `read_lines` reads them.

    Args:
        file: the file, or a pipe, with the method `peek` of a `io.BufferedReader`.
        name: its name in messages.

    Raises:
        DataError: see `read_lines`.
        OSError: if it cannot be read.
    """
    stream, kind = unpacked(file, name)
    try:
        yield from _decoded(stream, name)
    except (gzip.BadGzipFile, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{name}: corrupt {kind} file ({error})") from error
    except OSError as error:
        if error.errno is not None:  # bzip2 has no exception of its own
            raise
        raise DataError(f"{name}: corrupt {kind} file ({error})") from error


def unpacked(file: Any, name: str) -> tuple[Any, str]:
    """Return a file that is open in binary mode, or the stream that unpacks it, and the kind of its packing.

    Args:
        file: see `lines_of_file`.
        name: its name in messages.

    Raises:
        DataError: if it is packed otherwise than by gzip, bzip2 or xz, or not as the ending of its name says;
            when it is read, if it unpacks to far more bytes than text does.
    """
    begin = file.peek(1)  # all that is buffered
    for ending, (kind, magic, unpack) in PACKED.items():
        if begin.startswith(magic):
            status = os.fstat(file.fileno())
            most = most_unpacked(status.st_size) if stat.S_ISREG(status.st_mode) else sys.maxsize
            return io.BufferedReader(_Bounded(unpack(file), name, most), 2**16), kind
        if name.lower().endswith(ending):
            raise DataError(f"{name}: not a {kind} file, though its name ends in {ending}")
    for magic, what in _PACKED_OTHERWISE.items():
        if begin.startswith(magic):
            raise DataError(f"{name}: {what}, not text; unpack it")
    return file, ""


def read_json(path: Path) -> Any:
    """Read a JSON file, plain or gzip.

    Raises:
        DataError: if the file cannot be read (see `read_lines`), is not JSON or nested too deeply, or has a
            half of a surrogate pair, which is not text; the message names the line.
    """
    lines = read_lines(path)
    for number, line in enumerate(lines, start=1):
        check_surrogates(line, f"{path}, line {number}")
    return parse_json("\n".join(lines), path)


def check_surrogates(line: str, where: str) -> None:
    """Refuse a line of JSON with half of a surrogate pair, which is not text."""
    if half := _HALF.search(_PAIR.sub("", line)):
        raise DataError(f"{where}: {half[0]} is half of a character (a surrogate)")


def parse_json(text: str, path: Path, first: int = 1) -> Any:
    """Return the value of JSON.

    Args:
        text: text that begins at the line `first` of a file.
        path: path of the file, for the message.
        first: number of that line.

    Raises:
        DataError: if it is not JSON, nested too deeply, or an object has a key twice; the message names the
            line.
    """
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        line = first + error.lineno - 1
        raise DataError(f"{path}, line {line}, column {error.colno}: not JSON ({error.msg})") from error
    except (RecursionError, ValueError) as error:  # the second also: a number of thousands of digits
        raise DataError(f"{path}, line {first}: not JSON that can be read ({first_line(error)})") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, which has each key once: `json` would keep the last value."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"an object has {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return values


class _Bounded(io.RawIOBase):
    """A stream that is being unpacked, up to a number of bytes."""

    def __init__(self, stream: Any, name: str, most: int) -> None:
        self.stream, self.name, self.most, self.size = stream, name, most, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self.stream.readinto(buffer)
        self.size += count
        if self.size > self.most:
            raise DataError(f"{self.name}: it unpacks to more than {self.most:,} bytes, too many for a text")
        return count


def most_unpacked(packed: int) -> int:
    """Return the maximum unpacked size of a compressed text in bytes, which protects the memory.

    gzip compresses text to about a tenth, and repetitive text to about a thousandth.

    Example:
        >>> most_unpacked(2**30) // 2**30
        200
    """
    return MOST_RATIO * packed + 2**26


def decode_lines(stream: Iterable[bytes], name: str) -> list[str]:
    """Decode the lines of a binary stream of UTF-8, as `read_lines` does.

    Args:
        stream: lines of bytes, line ends included, as yielded by a file in binary mode.
        name: name of the stream in messages.

    Returns:
        The lines without their ends.

    Raises:
        DataError: if a line is not UTF-8 or has a NUL, or the only ends of lines are carriage returns.

    Example:
        >>> decode_lines([b"Guten Tag.\\n"], "standard input")
        ['Guten Tag.']
    """
    return list(_decoded(stream, name))


def _decoded(stream: Iterable[bytes], name: str) -> Iterator[str]:
    number, raw, text = 0, b"", ""
    # Bytes are split before they are decoded, because binary iteration breaks only at \n.
    for number, raw in enumerate(stream, start=1):
        line = raw
        while line.startswith(BYTE_ORDER_MARK):
            line = line.removeprefix(BYTE_ORDER_MARK)
        if not line:  # the mark of an empty file
            return
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if b"\0" in line:
            raise DataError(f"{name}, line {number}: not UTF-8 (it has NUL bytes){_encoding(line)}")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{name}, line {number}: not UTF-8 ({error.reason}){_encoding(line)}") from error
        if number == 1 and "\r" in text and not raw.endswith(b"\n"):  # the only line
            raise DataError(f"{name}: its lines end in carriage returns alone; convert them: tr '\\r' '\\n'")
        yield text


def _encoding(line: bytes) -> str:
    """Return a hint at the encoding of a line that is not UTF-8, for a message.

    Example:
        >>> _encoding("Guten Tag".encode("utf-16-le"))
        '; it looks like UTF-16; convert it: iconv -f UTF-16LE -t UTF-8'
    """
    likely, order = "", ""
    if line.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        likely = "UTF-32"
    elif line.startswith((b"\xff\xfe", b"\xfe\xff")):
        likely = "UTF-16"
    else:
        # ASCII in these encodings has a NUL in every place but one of four, or in one of two
        often = "".join(str(int(4 * line[offset::4].count(0) > len(line) / 2)) for offset in range(4))
        shapes = {"0111": "UTF-32 LE", "1110": "UTF-32 BE", "0101": "UTF-16 LE", "1010": "UTF-16 BE"}
        likely, _, order = shapes.get(often, "").partition(" ")
    if likely:
        return f"; it looks like {likely}; convert it: iconv -f {likely}{order} -t UTF-8"
    if b"\0" in line:
        return "; remove them: tr -d '\\0'"
    return "; convert text of another encoding, such as Latin-1: iconv -f ENCODING -t UTF-8"


def read_pairs(source: Path, target: Path, *, skip_empty: bool = True) -> Pairs:
    """Read two files that are aligned line by line.

    Args:
        source: path of the source sentences.
        target: path of the target sentences, with the same number of lines.
        skip_empty: True to exclude and count the pairs with a side of only whitespace. Set it to False for
            evaluation, where the line numbers must be kept.

    Returns:
        The pairs, in the order of the files, and the number of skipped pairs.

    Raises:
        DataError: if a file cannot be read (see `read_lines`), the files differ in their number of lines, or
            no pair is left.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     en, de = pathlib.Path(folder, "en"), pathlib.Path(folder, "de")
        ...     _ = en.write_text("Hello.\\n\\nThank you.\\n"), de.write_text("Hallo.\\nJa.\\nDanke.\\n")
        ...     read_pairs(en, de)
        Pairs(source=['Hello.', 'Thank you.'], target=['Hallo.', 'Danke.'], skipped=1, fields=None)
    """
    sources, targets = read_lines(source), read_lines(target)
    names = f"{os.fspath(source)} and {os.fspath(target)}"
    if len(sources) != len(targets):
        raise DataError(f"{names} are not aligned: {len(sources)} and {len(targets)} lines")
    pairs = list(zip(sources, targets, strict=True))
    kept = [pair for pair in pairs if pair[0].strip() and pair[1].strip()] if skip_empty else pairs
    if not kept:
        raise DataError(f"empty corpus: no pair of sentences in the {len(pairs)} lines of {names}")
    return Pairs([s for s, _ in kept], [t for _, t in kept], skipped=len(pairs) - len(kept))


def load_split(name: str, config: str | None, split: str, **options: Any) -> Any:
    """Load a split of a data set of Hugging Face; the files of a local folder are read anew.

    The cache of `datasets` tells files of a folder by their times alone.
    """
    import datasets

    if not os.path.isdir(name):
        return datasets.load_dataset(name, config, split=split, **options)
    with tempfile.TemporaryDirectory() as fresh:
        options |= {"cache_dir": fresh, "keep_in_memory": True}
        return datasets.load_dataset(name, config, split=split, **options)


def hub_pairs(dataset: str, config: str | None, split: str, source: str, target: str) -> Pairs:
    """Load the pairs of a split of a Hugging Face data set with a column "translation".

    Raises:
        DataError: if the data set cannot be loaded, a row lacks a language or has something else than a text,
            or there is no pair of sentences.
    """
    name = f"data set {dataset} ({split})"
    try:
        rows = list(load_split(dataset, config, split)["translation"])
    except Exception as error:  # the hub raises many types of exceptions; all mean that there are no data
        raise DataError(f"{name} cannot be loaded: {first_line(error)}") from error
    for number, row in enumerate(rows, start=1):
        for language in (source, target):
            if language not in (row or {}):
                there = ", ".join(row or {}) or "none"
                raise DataError(f"{name}, row {number}: no language '{language}'; there are: {there}")
            if not isinstance(row[language], str | None):
                raise DataError(
                    f"{name}, row {number}: {row[language]!r} of '{language}' is not a text"[:300]
                )
    pairs = [(row[source] or "", row[target] or "") for row in rows]
    kept = [(s, t) for s, t in pairs if s.strip() and t.strip()]
    if not kept:
        raise DataError(f"empty corpus: no pair of sentences in {name}")
    return Pairs([s for s, _ in kept], [t for _, t in kept], len(pairs) - len(kept))
