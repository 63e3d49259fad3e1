"""Times of events as their file has them: integers, decimal numbers and dates, none of them rounded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floater.errors import DataError
from floater.lab.tasks.corpora.rows import shown_value

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DATES = [pa.timestamp(unit, zone) for zone in ("UTC", None) for unit in ("s", "ns", "us")]
_KINDS = [pa.float64(), *_DATES]
"""Types of the texts of times; nanoseconds since 1970 end in 2262."""


@dataclass(frozen=True)
class EventTimes:
    """Times of events in the unit of their file.

    Args:
        counts: times as int64, float64 or, where neither holds them, `decimal.Decimal`.
        per_unit: number of counts in a unit of time.
    """

    counts: np.ndarray
    per_unit: int = 1

    def of(self, rows: Sequence[int]) -> EventTimes:
        """Return the times of some rows."""
        return EventTimes(self.counts[rows], self.per_unit)

    def falls(self) -> int | None:
        """Return the index of the first time that is earlier than the one before it, None for none."""
        fall = self.counts[1:] < self.counts[:-1]
        return int(np.argmax(fall)) + 1 if fall.any() else None

    def numbers(self) -> np.ndarray:
        """Return the times as float64, counted from the first one if float64 would round one of them.

        Example:
            >>> EventTimes(np.array([2**60, 2**60 + 1])).numbers().tolist()
            [0.0, 1.0]
        """
        counts = self.counts
        whole = counts.dtype == np.int64
        if counts.dtype == object or (whole and (self.per_unit > 1 or (np.abs(counts) > 2**53).any())):
            counts = counts.astype(object)  # whose integers do not wrap around
            counts = counts - counts[:1]
        return np.asarray(counts / self.per_unit, dtype=np.float64)


def decimal_times(texts: Sequence[str], numbers: np.ndarray) -> EventTimes:
    """Return the times that decimal numbers state.

    Args:
        texts: the numbers.
        numbers: their nearest float64.

    Example:
        >>> decimal_times(["0.5", "2"], np.array([0.5, 2.0])).counts.dtype
        dtype('float64')
        >>> decimal_times(["1700000000.1", "1700000000.2"], np.array([1700000000.1, 1700000000.2])).numbers()
        array([0. , 0.1])
    """
    if not np.isfinite(numbers).all():
        return EventTimes(numbers)
    exact = [Decimal(text) for text in texts]
    if all(decimal == number for decimal, number in zip(exact, numbers.tolist(), strict=True)):
        return EventTimes(numbers)
    return EventTimes(np.array(exact, dtype=object))


def column_times(column: Any, where: str, cell: Callable[[int], str]) -> EventTimes:
    """Return the times of a column of Arrow.

    Args:
        column: the column, with numbers, dates, or texts of these.
        where: the file and the column, for messages.
        cell: function from the index of a row to its file, line and column.

    Raises:
        DataError: if the column has no times, or floating-point numbers that round them.
    """
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s" if pa.types.is_date32(column.type) else "ms"))
    if _has_texts(column):
        column = _texts(pc.utf8_trim_whitespace(column), cell)
    if pa.types.is_timestamp(column.type):
        per_second = _PER_SECOND[column.type.unit]
        column = column.cast(pa.int64())
        return EventTimes(float64(column, where) if column.null_count else column.to_numpy(), per_second)
    if any(check(column.type) for check in (pa.types.is_boolean, pa.types.is_time, pa.types.is_duration)):
        raise DataError(
            f"{where} is {column.type}, not times (data.columns.time); times are numbers, or dates in ISO "
            "8601 such as 2024-01-31T12:30:00"
        )
    if pa.types.is_integer(column.type) and not column.null_count:
        try:
            return EventTimes(column.cast(pa.int64()).to_numpy(zero_copy_only=False))
        except pa.ArrowInvalid:  # above int64
            pass
    numbers = float64(column, where)
    if not pa.types.is_floating(column.type):
        return decimal_times([str(number) for number in column.to_pylist()], numbers)
    holds = {pa.float16(): 2**11, pa.float32(): 2**24}.get(column.type, np.inf)
    if (largest := np.abs(numbers).max(initial=0)) > holds:
        raise DataError(
            f"{where} is {column.type}, which holds whole times up to {holds:,} only, and has {largest:.6g}; "
            "store it as double or integers"
        )
    return EventTimes(numbers)


def _texts(texts: Any, cell: Callable[[int], str]) -> Any:
    """Return texts of dates as timestamps, of integers as int64; other numbers as they are.

    Raises:
        DataError: if the texts are neither; the message names the first cell that is not like those before.
    """

    for kind in _KINDS:
        if _casts(texts, kind):
            exact = pa.int64() if kind == pa.float64() else kind  # float64 would round integers
            return texts.cast(exact) if _casts(texts, exact) else texts
    wrong = max(_first_that_does_not_cast(texts, kind) for kind in _KINDS)
    raise DataError(
        f"{cell(wrong)}: {shown_value(texts[wrong].as_py())} is not a number or a date in ISO 8601"
        f"{' like those before it' * (wrong > 0)}; dates must all have a time zone, or none"
    )


def _has_texts(column: Any) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _casts(column: Any, kind: Any) -> bool:
    try:
        column.cast(kind)
    except pa.ArrowException:
        return False
    return True


def _first_that_does_not_cast(column: Any, kind: Any) -> int:
    """Return the index of the first cell that does not cast to a type, of a column that has one."""
    return bisect_left(range(1, len(column) + 1), True, key=lambda count: not _casts(column[:count], kind))


def float64(column: Any, where: str, cell: Callable[[int], str] | None = None) -> np.ndarray:
    """Return a column of Arrow as float64, NaN where it is empty.

    Args:
        column: the column.
        where: the file and the column, for messages.
        cell: function from the index of a row to its file, line and column.

    Raises:
        DataError: if it has no numbers; the message names the first text that is none.
    """
    try:
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    except pa.ArrowException as error:
        if cell is not None and _has_texts(column):
            wrong = _first_that_does_not_cast(column, pa.float64())
            raise DataError(
                f"{cell(wrong)}: {shown_value(column[wrong].as_py())} is not a number; a value that was not "
                "observed is an empty cell"
            ) from error
        raise DataError(f"{where} is {column.type}, not numbers ({' '.join(str(error).split())})") from error
