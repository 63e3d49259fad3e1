"""Sequences of events from tables (CSV, JSON, Parquet, Hugging Face data sets) and from lines of text."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from floater.errors import DataError, reason
from floater.lab.tasks.corpora.columns import columns_advice
from floater.lab.tasks.corpora.event_times import EventTimes, column_times, decimal_times, float64
from floater.lab.tasks.corpora.rows import JSON, delimited_rows, delimiter_of, json_rows, shown_value, suffix
from floater.lab.tasks.corpora.splits import HUB
from floater.lab.tasks.corpora.text import load_split, read_lines, unpacked

TIMES, TYPES = "time.txt", "event.txt"
_CSV = ".csv"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf|infinity)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a table of events.

    Attributes:
        id: column with the id of the event's sequence.
        time: column with the time of the event, a number, or a date in ISO 8601 with hyphens (seconds since
            1970).
        type: column with the type of the event; null for events with values.
        values: columns with values of the event, empty where not observed; no columns for events with types.
    """

    id: str = "id"
    time: str = "time"
    type: str | None = "type"
    values: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if bool(self.type) == bool(self.values):
            raise ValueError(
                f"type is {self.type!r} and values are {self.values}; name the column of the types, or those "
                "of the values and type null"
            )
        if len(set(self.values)) < len(self.values):
            raise ValueError(f"values are {self.values}; every column must be named once")


@dataclass(frozen=True)
class EventSequence:
    """A sequence of events, in the order of its file.

    Args:
        id: id of the sequence in the data.
        times: times of the events, (n,) float64, finite and non-decreasing.
        types: types of the events; empty if they have values.
        values: values of the events, (n, features), 0 where not observed; no column if events have types.
        observed: mask of the observed values, (n, features) bool.
    """

    id: str
    times: np.ndarray
    types: tuple[str, ...]
    values: np.ndarray
    observed: np.ndarray

    def __len__(self) -> int:
        return len(self.times)

    def part(self, begin: int, end: int) -> EventSequence:
        """Return the events from `begin` up to but excluding `end`."""
        cut = slice(begin, end)
        return EventSequence(self.id, self.times[cut], self.types[cut], self.values[cut], self.observed[cut])


def read_sequences(source: str | Path, columns: Columns) -> list[EventSequence]:
    """Read sequences of events.

    Args:
        source: CSV (.csv), JSON (.jsonl, .ndjson, .json) or Parquet (.parquet) file with a row for each
            event, or with a row for each sequence and lists of its times, and its types or values;
            directory with time.txt and event.txt, one sequence per line; or hf:NAME, the training split of a
            Hugging Face data set, or hf:NAME:SPLIT. The rows of a sequence keep their order. Times that
            float64 would round, such as dates below seconds, are counted from the first event of a sequence.
        columns: names of the columns of a table.

    Raises:
        DataError: if the source cannot be read, lacks a column, or contains no event; if an id, a time or a
            type is missing; if a time is NaN, infinite or earlier than the one before it; if a value is NaN
            or infinite; or if lists of a row differ in length. The message names the sequence and the index
            of the event.
    """
    name = str(source)
    if Path(name).is_dir():
        return _from_lines(Path(name), columns)
    table, listed = _by_event(name, _table(name, columns), columns)
    if not table.num_rows:
        raise DataError(f"{name} holds no event")
    ids = table[columns.id].to_pylist()
    rows_of: dict[str, list[int]] = {}
    for row, id in enumerate(map(_name, ids)):
        if not id:
            raise DataError(f"{name}: row {row} (from 0) has no '{columns.id}', so it is of no sequence")
        rows_of.setdefault(id, []).append(row)
    cell = functools.partial(_cell, name, columns.time, listed)
    event_times = column_times(table[columns.time], f"{name}: column '{columns.time}'", cell)
    types = table[columns.type].to_pylist() if columns.type else None
    values = np.empty((len(ids), len(columns.values)))
    observed = np.empty(values.shape, dtype=bool)
    for i, column in enumerate(columns.values):
        where = functools.partial(_cell, name, column, listed)
        values[:, i] = float64(table[column], f"{name}: column '{column}'", where)
        observed[:, i] = ~np.asarray(table[column].is_null())
    sequences = []
    for id, rows in rows_of.items():
        row_types = () if types is None else tuple(_name(types[row]) for row in rows)
        sequence = id, event_times.of(rows), row_types, values[rows], observed[rows]
        shown = functools.partial(_shown, table[columns.time], rows)
        sequences.append(_checked(name, *sequence, columns, shown))
    return sequences


def _name(value: Any) -> str:
    """Return the name of a sequence or a type, empty for none."""
    return "" if value is None or value != value else str(value)  # NaN differs from itself


def _table(name: str, columns: Columns) -> pa.Table:
    wanted = [columns.id, columns.time, *([columns.type] if columns.type else []), *columns.values]
    try:
        if name.startswith(HUB):
            path, _, part = name.removeprefix(HUB).partition(":")
            table = load_split(path, None, part or "train").data.table
        elif name.endswith(".parquet"):
            with pa.parquet.ParquetFile(name) as file:
                table = file.read()
        elif suffix(name) in JSON:
            table = _json_table(name, wanted)
        elif suffix(name) == _CSV:
            table = _csv_table(name, columns)
        else:
            raise DataError(
                f"{name}: events are read from .csv, .jsonl, .json, .parquet, a directory with "
                f"{TIMES} and {TYPES}, or hf:NAME"
            )
        there = table.column_names
    except DataError:
        raise
    except Exception as error:  # Arrow and datasets raise many types of exceptions
        raise DataError(f"{name}: cannot be read ({reason(error)})") from error
    for column in wanted:
        if there.count(column) != 1:
            how = "two columns" if column in there else "no column"
            raise DataError(
                f"{name} has {how} '{column}'; it has: {', '.join(there)}; {columns_advice('ROLE')}"
            )
    return table


def _csv_table(name: str, columns: Columns) -> pa.Table:
    """Return the rows of a CSV file, plain or compressed; ids, times and types are texts."""
    kept = {column: pa.string() for column in (columns.id, columns.time, columns.type) if column}
    # without newlines_in_values a row whose line break is at the end of a block would be read as two
    parse = pa.csv.ParseOptions(delimiter=delimiter_of(name), newlines_in_values=True)
    convert = pa.csv.ConvertOptions(column_types=kept)
    with open(name, "rb") as file:
        text, _ = unpacked(file, name)
        try:
            return pa.csv.read_csv(text, parse_options=parse, convert_options=convert)
        except DataError:
            raise
        except Exception:
            for _ in delimited_rows(name):  # whose errors name the line
                pass
            raise


def _json_table(name: str, wanted: Collection[str]) -> pa.Table:
    """Return the rows of a JSON file; columns that are not wanted are empty.

    Raises:
        DataError: if there is no row, or the values of a column are of several types.
    """
    rows = [row for _, row in json_rows(name)]
    if not rows:
        raise DataError(f"{name} holds no event")
    columns = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        try:
            columns[key] = pa.array([row.get(key) for row in rows]) if key in wanted else pa.nulls(len(rows))
        except pa.ArrowException as error:
            raise DataError(
                f"{name}: column '{key}' has values of several types ({reason(error)})"
            ) from error
    return pa.table(columns)


def _by_event(name: str, table: pa.Table, columns: Columns) -> tuple[pa.Table, np.ndarray | None]:
    """Return a table with a row for each event.

    Returns:
        The table, and the row in the file of each event, if a row there has lists with a whole sequence.

    Raises:
        DataError: if some columns alone have lists, the lists of a row differ in length, or two rows have one
            id.
    """
    names = [columns.time, *([columns.type] if columns.type else []), *columns.values]
    is_list = [_is_list(table.schema.field(column).type) for column in names]
    if not any(is_list):
        return table, None
    if not all(is_list):
        lists, other = names[is_list.index(True)], names[is_list.index(False)]
        raise DataError(f"{name}: column '{lists}' has lists and '{other}' none; both must have one per row")
    counts = [pc.fill_null(pc.list_value_length(table[column]), 0).to_numpy() for column in names]
    for column, count in zip(names, counts, strict=True):
        if (count != counts[0]).any():
            row = int(np.argmax(count != counts[0]))
            raise DataError(
                f"{_line(name, row)}: {counts[0][row]} values in column '{columns.time}' and {count[row]} in "
                f"'{column}'"
            )
    ids: dict[str, int] = {}
    for row, id in enumerate(map(_name, table[columns.id].to_pylist())):
        if id and ids.setdefault(id, row) != row:
            raise DataError(
                f"{_line(name, row)}, column '{columns.id}': {shown_value(id)} is that of an earlier row; "
                "a row with lists is a whole sequence"
            )
    rows = np.repeat(np.arange(table.num_rows), counts[0])
    flat = {column: pc.list_flatten(table[column]) for column in names}
    return pa.table({columns.id: table[columns.id].take(rows), **flat}), rows


def _is_list(kind: Any) -> bool:
    return any(
        check(kind) for check in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    )


def _cell(name: str, column: str, listed: np.ndarray | None, row: int) -> str:
    """Return the file, line and column of a cell, for a message."""
    return f"{_line(name, row if listed is None else int(listed[row]))}, column '{column}'"


def _line(name: str, row: int) -> str:
    """Return the file and the line of a row, for a message."""
    kind = suffix(name)
    rows = delimited_rows(name) if kind == _CSV else json_rows(name) if kind in JSON else iter(())
    number = next((line for line, _ in itertools.islice(rows, row, None)), None)
    return f"{name}, {f'line {number}' if number and number > 0 else f'row {row + 1}'}"


def _shown(times: Any, rows: Sequence[int], index: int) -> str:
    """Return the time of an event of a sequence as the file has it."""
    return str(times[rows[index]]).strip()


def _checked(
    name: str,
    id: str,
    event_times: EventTimes,
    types: tuple[str, ...],
    values: np.ndarray,
    observed: np.ndarray,
    columns: Columns,
    shown: Callable[[int], str],
) -> EventSequence:
    where, times = f"{name}, sequence '{id}'", event_times.numbers()
    if not np.isfinite(times).all():
        index = int(np.argmin(np.isfinite(times)))
        raise DataError(f"{where}: the time of event {index} is {times[index]}; every time must be finite")
    if (fall := event_times.falls()) is not None:
        raise DataError(
            f"{where}: event {fall} ({shown(fall)}) is earlier than event {fall - 1} ({shown(fall - 1)}); "
            "times must not fall: sort the rows of each sequence by time"
        )
    if "" in types:
        raise DataError(f"{where}: event {types.index('')} has no type")
    wrong = observed & ~np.isfinite(values)
    if wrong.any():
        row, feature = np.argwhere(wrong)[0]
        raise DataError(
            f"{where}: '{columns.values[feature]}' of event {row} is {values[row, feature]}; "
            "leave it empty where it was not observed"
        )
    return EventSequence(id, times, types, np.where(observed, values, 0.0), observed)


def _from_lines(folder: Path, columns: Columns) -> list[EventSequence]:
    if not columns.type:
        raise DataError(f"{folder} is a directory, which holds types of events; data.columns.type is null")
    times, types = read_lines(folder / TIMES), read_lines(folder / TYPES)
    if len(times) != len(types):
        raise DataError(f"{folder}: {TIMES} has {len(times)} lines, {TYPES} {len(types)}")
    sequences = []
    for line, (time_line, type_line) in enumerate(zip(times, types, strict=True), start=1):
        names = tuple(type_line.split())
        texts = time_line.split()
        if wrong := [text for text in texts if not _NUMBER.fullmatch(text)]:
            raise DataError(f"{folder / TIMES}, line {line}: {shown_value(wrong[0])} is not a number")
        event_times = decimal_times(texts, np.array([float(text) for text in texts]))
        if len(texts) != len(names):
            raise DataError(f"{folder}, line {line}: {len(texts)} times and {len(names)} types")
        if texts:
            none = np.zeros((len(texts), 0))
            sequence = str(line), event_times, names, none, none.astype(bool)
            sequences.append(_checked(str(folder), *sequence, columns, texts.__getitem__))
    if not sequences:
        raise DataError(f"{folder} holds no event")
    return sequences
