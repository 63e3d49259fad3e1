"""Sequences of texts, of groups of texts, or of rows of numbers, held flat in a few arrays.

A Python string takes 50 bytes besides its letters, an array 110 bytes besides its numbers, and a list 36
bytes a number. Here millions of them are one array and the ends of its parts, which may be memory maps of
files that processes share.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import numpy as np

Array = np.ndarray[Any, Any]
Item = TypeVar("Item")
_AT_ONCE = 2**16
_RECORDS = 2**10


class _Parts(Sequence[Item]):
    """A sequence whose items are the parts between `ends`."""

    ends: Array

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        start = int(self.ends[number - 1]) if number else 0
        return self._item(start, int(self.ends[number]))

    def __iter__(self) -> Iterator[Item]:
        start = 0
        for first in range(0, len(self.ends), _AT_ONCE):
            for end in self.ends[first : first + _AT_ONCE].tolist():
                yield self._item(start, end)
                start = end

    @abstractmethod
    def _item(self, start: int, end: int) -> Item:
        """Return the part from `start` up to `end`."""


@dataclass(frozen=True, eq=False)
class Ragged(_Parts[Any]):
    """Rows of numbers of different lengths.

    Args:
        values: numbers of all rows, one after the other, (n,).
        ends: end of each row in `values`, (rows,) int64.

    Example:
        >>> rows = Ragged.of([[5, 6], [], [7]])
        >>> len(rows), rows[0].tolist(), rows[-1].tolist(), rows.lengths.tolist()
        (3, [5, 6], [7], [2, 0, 1])
    """

    values: Array
    ends: Array

    @classmethod
    def of(cls, rows: Iterable[Any], dtype: Any = np.int32) -> Ragged:
        """Return rows of integers as one array."""
        values, ends = bytearray(), []
        for row in rows:
            values += np.asarray(row, dtype=dtype).tobytes()
            ends.append(len(values))
        flat = np.frombuffer(values, dtype=dtype)
        return cls(flat, np.array(ends, dtype=np.int64) // flat.itemsize)

    @property
    def lengths(self) -> Array:
        """Return the length of each row, (rows,) int64."""
        return np.diff(self.ends, prepend=0)

    def _item(self, start: int, end: int) -> Any:
        return self.values[start:end]


class TextLines(Ragged):
    """Texts as UTF-8; half a surrogate pair, which is not text but may stand in a table, is kept.

    Example:
        >>> lines = TextLines.of(["Grüße", "", "b"])
        >>> lines[0], lines[1:], list(lines) == ["Grüße", "", "b"]
        ('Grüße', ['', 'b'], True)
    """

    @classmethod
    def of(cls, rows: Iterable[str], dtype: Any = np.uint8) -> TextLines:
        texts = (np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=dtype) for text in rows)
        flat = Ragged.of(texts, dtype)
        return cls(flat.values, flat.ends)

    def _item(self, start: int, end: int) -> str:
        return self.values[start:end].tobytes().decode("utf-8", "surrogatepass")


@dataclass(frozen=True, eq=False)
class Groups(_Parts[list[Any]]):
    """Groups of items, as the lines of documents.

    Args:
        items: items of all groups, one after the other.
        ends: end of each group in `items`, (groups,) int64.

    Example:
        >>> documents = Groups.of(TextLines, [["a", "b"], ["c"]])
        >>> documents[0], list(documents)
        (['a', 'b'], [['a', 'b'], ['c']])
    """

    items: Ragged
    ends: Array

    @classmethod
    def of(cls, kind: type[Ragged], groups: Sequence[Sequence[Any]]) -> Groups:
        """Return groups of items of a kind."""
        return cls(
            kind.of(item for group in groups for item in group),
            np.cumsum([len(group) for group in groups], dtype=np.int64),
        )

    def _item(self, start: int, end: int) -> list[Any]:
        return self.items[start:end]

    def flat(self) -> Iterator[Any]:
        """Iterate over the items of all groups."""
        return iter(self.items)


@dataclass(frozen=True, eq=False)
class Records(Sequence[dict[str, Any]]):
    """Records of numbers by name, such as the inputs of a model for each example.

    Args:
        names: names of the values of a record.
        columns: values of each name in all records: numbers, rows of integers, or groups of such rows.

    Example:
        >>> records = Records.of({"ids": [5] * n, "label": n / 2} for n in (1, 3))
        >>> len(records), records[1], records.column("label")
        (2, {'ids': [5, 5, 5], 'label': 1.5}, array([0.5, 1.5]))
    """

    names: Sequence[str]
    columns: tuple[Any, ...]

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> Records:
        """Return records that have the same names."""
        records, blocks = iter(records), []
        names: list[str] = []
        while block := list(itertools.islice(records, _RECORDS)):
            names = names or list(block[0])
            blocks.append([_column([record[name] for record in block]) for name in names])
        return cls(names, tuple(map(_joined, zip(*blocks, strict=True))))

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        return {name: _plain(each[number]) for name, each in zip(self.names, self.columns, strict=True)}

    def column(self, name: str) -> Any:
        """Return the values of a name in all records."""
        return self.columns[list(self.names).index(name)]


def _column(values: list[Any]) -> Any:
    if not isinstance(values[0], list):
        return np.array(values)
    nested = bool(values[0]) and isinstance(values[0][0], list)
    return Groups.of(Ragged, values) if nested else Ragged.of(values)


def _joined(parts: Sequence[Any]) -> Any:
    """Return parts of a column as one."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    before = np.cumsum([0, *(part.ends[-1] for part in parts[:-1])])
    ends = np.concatenate([part.ends + start for part, start in zip(parts, before, strict=True)])
    if isinstance(parts[0], Groups):
        return Groups(_joined([part.items for part in parts]), ends)
    return Ragged(np.concatenate([part.values for part in parts]), ends)


def _plain(value: Any) -> Any:
    return [part.tolist() for part in value] if isinstance(value, list) else value.tolist()
