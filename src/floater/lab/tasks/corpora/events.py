"""Sequences of events from tables (CSV, Parquet, Hugging Face data sets) and from lines of text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from floater.errors import DataError, reason
from floater.lab.tasks.corpora.tables import columns_advice
from floater.lab.tasks.corpora.text import read_lines

TIMES, TYPES = "time.txt", "event.txt"
HUB = "hf:"


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a table of events.

    Attributes:
        id: column with the id of the event's sequence.
        time: column with the time of the event, a number, or a date in ISO 8601 (seconds since 1970).
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
        source: CSV (.csv, .csv.gz) or Parquet (.parquet) file with a row for each event; directory with
            time.txt and event.txt, one sequence per line; or hf:NAME, the training split of a Hugging Face
            data set, or hf:NAME:SPLIT. The rows of a sequence keep their order. Integers and dates that
            float64 would round, as nanoseconds since 1970, are counted from the first event of a sequence.
        columns: names of the columns of a table.

    Raises:
        DataError: if the source cannot be read, lacks a column, or contains no event; if an id, a time or a
            type is missing; if a time is NaN, infinite or earlier than the one before it; or if a value is
            NaN or infinite. The message names the sequence and the index of the event.
    """
    name = str(source)
    if Path(name).is_dir():
        return _from_lines(Path(name), columns)
    table = _table(name, columns)
    if not table.num_rows:
        raise DataError(f"{name} holds no event")
    named = table[columns.id].to_pylist()
    if (lacking := next((i for i, x in enumerate(named) if x is None or x == ""), None)) is not None:
        raise DataError(f"{name}: row {lacking} (from 0) has no '{columns.id}', so it is of no sequence")
    ids = np.asarray([str(x) for x in named])
    times, per_unit = _times(table[columns.time], name, columns.time)
    exact = times.dtype == np.int64 and (np.abs(times) > 2**53).any()  # float64 would round them
    types = table[columns.type].to_pylist() if columns.type else None
    values = np.empty((len(ids), len(columns.values)))
    for i, column in enumerate(columns.values):
        values[:, i] = _numbers(table[column], name, column)
    _, first, group = np.unique(ids, return_index=True, return_inverse=True)
    by_sequence = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    null = [np.asarray(table[column].is_null()) for column in columns.values]
    missing = np.stack(null, 1) if null else np.zeros((len(ids), 0), dtype=bool)
    sequences = []
    for rows in sorted(by_sequence, key=lambda rows: first[group[rows[0]]]):
        row_types = (
            tuple("" if types[i] is None else str(types[i]) for i in rows) if types is not None else ()
        )
        clock = times[rows]
        if exact:
            clock = clock - clock[0]
        part = clock / per_unit, row_types, values[rows], ~missing[rows]
        sequences.append(_checked(name, EventSequence(ids[rows[0]], *part), columns))
    return sequences


def _table(name: str, columns: Columns) -> pa.Table:
    wanted = [columns.id, columns.time, *([columns.type] if columns.type else []), *columns.values]
    try:
        if name.startswith(HUB):
            from datasets import load_dataset

            path, _, part = name.removeprefix(HUB).partition(":")
            table = load_dataset(path, split=part or "train").data.table
        elif name.endswith(".parquet"):
            table = pa.parquet.read_table(name)
        elif name.endswith((".csv", ".csv.gz")):
            kept = {name: pa.string() for name in (columns.id, columns.type) if name}
            table = pa.csv.read_csv(name, convert_options=pa.csv.ConvertOptions(column_types=kept))
        else:
            raise DataError(
                f"{name}: events are read from .csv, .csv.gz, .parquet, a directory with {TIMES} and "
                f"{TYPES}, or hf:NAME"
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


def _times(column: Any, name: str, called: str) -> tuple[np.ndarray, int]:
    """Return a column of times, as integers if it has integers or dates, and their number per unit of time.

    Raises:
        DataError: if the column has no times, or floating-point numbers that round them.
    """
    per_unit = 1
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s" if pa.types.is_date32(column.type) else "ms"))
    if pa.types.is_timestamp(column.type):
        per_unit = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
        column = column.cast(pa.int64())
    if pa.types.is_uint64(column.type):
        try:
            column = column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise DataError(f"{name}: column '{called}' has a time above {2**63 - 1:,}") from error
    if pa.types.is_integer(column.type) and not column.null_count:
        whole: np.ndarray = column.to_numpy()
        return whole.astype(np.int64), per_unit
    if pa.types.is_boolean(column.type):
        raise DataError(f"{name}: column '{called}' is bool, not times (data.columns.time)")
    numbers = _numbers(column, name, called)
    holds = {pa.float16(): 2**11, pa.float32(): 2**24}.get(column.type, np.inf)
    if (largest := np.abs(numbers).max(initial=0)) > holds:
        raise DataError(
            f"{name}: column '{called}' is {column.type}, which holds whole times up to {holds:,} only, and "
            f"has {largest:.6g}; store it as double or integers"
        )
    return numbers / per_unit, 1


def _numbers(column: Any, name: str, called: str) -> np.ndarray:
    """Return a column as float64, NaN where it is empty."""
    try:
        numbers: np.ndarray = column.cast(pa.float64(), safe=False).to_numpy()
    except pa.ArrowException as error:
        raise DataError(
            f"{name}: column '{called}' is {column.type}, not numbers ({' '.join(str(error).split())})"
        ) from error
    return numbers


def _checked(name: str, sequence: EventSequence, columns: Columns) -> EventSequence:
    where, times = f"{name}, sequence '{sequence.id}'", sequence.times
    if not np.isfinite(times).all():
        index = int(np.argmin(np.isfinite(times)))
        raise DataError(f"{where}: the time of event {index} is {times[index]}; every time must be finite")
    if (np.diff(times) < 0).any():
        index = int(np.argmax(np.diff(times) < 0)) + 1
        raise DataError(
            f"{where}: event {index} ({times[index]:.17g}) is earlier than event {index - 1} "
            f"({times[index - 1]:.17g}); times must not fall: sort the rows of each sequence by time"
        )
    if "" in sequence.types:
        raise DataError(f"{where}: event {sequence.types.index('')} has no type")
    wrong = sequence.observed & ~np.isfinite(sequence.values)
    if wrong.any():
        row, feature = np.argwhere(wrong)[0]
        raise DataError(
            f"{where}: '{columns.values[feature]}' of event {row} is {sequence.values[row, feature]}; "
            "leave it empty where it was not observed"
        )
    sequence.values[~sequence.observed] = 0.0
    return sequence


def _from_lines(folder: Path, columns: Columns) -> list[EventSequence]:
    if not columns.type:
        raise DataError(f"{folder} is a directory, which holds types of events; data.columns.type is null")
    times, types = read_lines(folder / TIMES), read_lines(folder / TYPES)
    if len(times) != len(types):
        raise DataError(f"{folder}: {TIMES} has {len(times)} lines, {TYPES} {len(types)}")
    sequences = []
    for line, (time_line, type_line) in enumerate(zip(times, types, strict=True), start=1):
        names = tuple(type_line.split())
        try:
            at = np.array([float(x) for x in time_line.split()])
        except ValueError as error:
            raise DataError(f"{folder / TIMES}, line {line}: {error}") from error
        if len(at) != len(names):
            raise DataError(f"{folder}, line {line}: {len(at)} times and {len(names)} types")
        if len(at):
            none = np.zeros((len(at), 0))
            sequences.append(
                _checked(str(folder), EventSequence(str(line), at, names, none, none.astype(bool)), columns)
            )
    if not sequences:
        raise DataError(f"{folder} holds no event")
    return sequences
