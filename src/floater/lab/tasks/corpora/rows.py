"""Rows of CSV, TSV, JSON and JSON Lines files, with the lines at which they begin."""

from __future__ import annotations

import csv
import itertools
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from floater.errors import DataError, first_line
from floater.lab.tasks.corpora.text import PACKED, check_surrogates, iter_lines, parse_json, read_json

logger = logging.getLogger(__name__)
Row = Mapping[str, Any]
DELIMITED, JSON = (".csv", ".tsv"), (".jsonl", ".ndjson", ".json")
_DELIMITERS = ",;\t|"


def suffix(name: str) -> str:
    """Return the ending of a file's name, before that of its compression."""
    path = Path(name.lower())
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


def shown_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def delimited_rows(name: str) -> Iterator[tuple[int, Row]]:
    r"""Yield the rows of a CSV or TSV file, with the line at which each begins.

    The delimiter is the one of , ; \t and | that occurs most in the header. A TSV whose quotes are not those
    of CSV has literal quotes; one that can be read either way is refused.

    Raises:
        DataError: if a row has too few or too many cells, or quotes that do not enclose cells; the message
            names file and line, and the column of a quote after a blank.
    """
    delimiter = delimiter_of(name)
    tabs = suffix(name) == ".tsv"
    if not tabs and delimiter != ",":
        logger.info("%s: cells are separated by %r", name, delimiter)
    if not tabs:
        return (yield from _parsed(name, delimiter, csv.QUOTE_MINIMAL))
    quoting = csv.QUOTE_MINIMAL if _quotes_enclose_cells(name, delimiter) else csv.QUOTE_NONE
    yield from _parsed(name, delimiter, quoting)


def delimiter_of(name: str) -> str:
    r"""Return the delimiter of a CSV or TSV file.

    Raises:
        DataError: if the file cannot be read.
    """
    if suffix(name) == ".tsv":
        return "\t"
    return max(_DELIMITERS, key=re.sub('"[^"]*"', "", _header(name)).count)


def _header(name: str) -> str:
    return next((line for line in iter_lines(name) if line.strip()), "")


def _quotes_enclose_cells(name: str, delimiter: str) -> bool:
    """Return whether the quotes of a TSV are those of CSV, and log what that means where it is not plain.

    Raises:
        DataError: if a quotation may be one cell or go on from one row to another.
    """
    spanning, may_join = 0, '"' not in _header(name)
    try:
        for line, row in _parsed(name, delimiter, csv.QUOTE_MINIMAL):
            several = [cell for cell in row.values() if "\n" in cell]
            spanning += len(several)
            if may_join and any(delimiter in cell for cell in several):
                if _has_literal_quotes(name, delimiter):
                    raise DataError(
                        f"{name}, line {line}: a quotation with a tab and a line break is either one cell or "
                        "parts of several rows; save the table as CSV with quotes, or as JSON Lines"
                    )
                may_join = False  # one answer for the file
    except _QuotesError:
        logger.info("%s: its quotes are read as they are, since they are not in pairs around cells", name)
        return False
    if spanning:
        logger.info("%s: %d quoted cells have several lines", name, spanning)
    return True


def _has_literal_quotes(name: str, delimiter: str) -> bool:
    """Return whether all lines have a cell for each column if quotes are read as they are."""
    try:
        for _ in _parsed(name, delimiter, csv.QUOTE_NONE):
            pass
    except DataError:
        return False
    return True


class _QuotesError(DataError):
    """Quotes that do not enclose cells."""


def _parsed(name: str, delimiter: str, quoting: Any) -> Iterator[tuple[int, Row]]:
    csv.field_size_limit(sys.maxsize)  # the default, 128 KiB, is less than a book
    written: list[str] = []  # lines of the row

    def lines() -> Iterator[str]:
        for line in iter_lines(name):
            written.append(f"{line}\n")
            yield written[-1]

    reader = csv.reader(lines(), delimiter=delimiter, quoting=quoting, strict=True)
    header: list[str] = []
    begin = 1
    try:
        for cells in reader:
            line, begin = begin, reader.line_num + 1
            text = "".join(written)
            written.clear()
            if not cells:  # a blank line
                continue
            if quoting == csv.QUOTE_MINIMAL and delimiter != "\t":  # blanks around tabs are text
                _check_quotes(f"{name}, line {line}", cells, header or cells, text)
            if not header:
                header = [cell.strip() for cell in cells]
                if twice := {cell for cell in header if cell and header.count(cell) > 1}:
                    raise DataError(f"{name}, line {line}: two columns are named '{min(twice)}'")
                continue
            if len(cells) != len(header):
                counts = f"{len(cells)} cell{'s' * (len(cells) != 1)}, but the header has {len(header)}"
                hint = "; a cell with the delimiter in it needs quotes" * (len(cells) > len(header))
                raise DataError(f"{name}, line {line}: {counts}{hint}")
            yield line, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        if "new-line character" in str(error):
            hint = "put quotes around the cell, or remove it" if delimiter != "\t" else "remove it"
            raise DataError(
                f"{name}, line {reader.line_num}: a carriage return within a cell; {hint}"
            ) from error
        unclosed = "unexpected end" in str(error)
        line, what = (begin, "a quote is never closed") if unclosed else (reader.line_num, first_line(error))
        raise _QuotesError(f"{name}, line {line}: {what}; a quote within a cell is written twice") from error


def _check_quotes(where: str, cells: list[str], header: list[str], text: str) -> None:
    """Refuse quotes after blanks, which other programs take for those around a cell.

    Args:
        where: file and line, for the message.
        cells: cells of a row.
        header: names of the columns.
        text: text of the row.

    Raises:
        DataError: if a cell begins with blanks and a quote, and quotes do not enclose all of that.
    """
    for number, cell in enumerate(cells):
        quoted = '"' + cell.replace('"', '""') + '"'
        if cell[:1].isspace() and cell.lstrip().startswith('"') and quoted not in text:
            column = f"column '{header[number].strip()}'" if number < len(header) else f"cell {number + 1}"
            raise DataError(
                f"{where}, {column}: a blank precedes the quote of {shown_value(cell)}; remove the blank, or "
                "put quotes around all of the cell"
            )


def json_rows(name: str) -> Iterator[tuple[int, Row]]:
    """Yield the rows of JSON Lines with their lines, or those of a list in a JSON file, numbered from -1."""
    if suffix(name) == ".json" and not _has_lines_of_json(name):
        value = read_json(name)
        if isinstance(
            value, Mapping
        ):  # the rows may be the only list in it, as in {"version": 1, "data": [...]}
            lists = [part for part in value.values() if isinstance(part, list)]
            value = lists[0] if len(lists) == 1 else [value]
        if not isinstance(value, list):
            raise DataError(f'{name}: no list of rows, as in [{{"text": ...}}, ...], nor one row a line')
        numbered: Iterable[tuple[int, Any]] = ((-number, row) for number, row in enumerate(value, start=1))
    else:
        numbered = _lines_of_json(name)
    for number, row in numbered:
        if not isinstance(row, Mapping):
            row_name = f"line {number}" if number > 0 else f"row {-number}"
            raise DataError(f'{name}, {row_name}: {shown_value(row)} is not a row, as in {{"text": ...}}')
        yield number, row


def _has_lines_of_json(name: str) -> bool:
    """Return whether the first of several lines is a whole JSON object."""
    first, *more = [*itertools.islice(filter(str.strip, iter_lines(name)), 2)] or [""]
    try:
        return bool(more) and isinstance(parse_json(first, name), Mapping)
    except DataError:
        return False


def _lines_of_json(name: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(iter_lines(name), start=1):
        if line.strip():
            check_surrogates(line, f"{name}, line {number}")
            yield number, parse_json(line, name, number)
