"""Tables of examples: CSV, TSV, JSON, JSON Lines, Parquet, Arrow, and data sets of Hugging Face.

A source is the path of a file, plain or compressed, that of a folder that `datasets` can load, or "hf:NAME",
a name on the Hugging Face hub. ":SPLIT" after a folder or a name chooses a split: "hf:stanfordnlp/imdb:test".

`datasets` finds and loads splits. Columnar files are read by Arrow, because `datasets` keeps copies of files,
which it takes for the files as long as their times are the same. Files of text are parsed by Python's own
modules: `datasets` reads them with pandas and Arrow, which guess types, so that a cell "NA" becomes nothing
and "007" becomes 7, and cannot name a line in a message.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import normalize

from floater.errors import DataError
from floater.lab.tasks.corpora.columns import Choice, outer_of, value_of
from floater.lab.tasks.corpora.rows import (
    DELIMITED,
    JSON,
    Row,
    delimited_rows,
    json_rows,
    shown_value,
    suffix,
)
from floater.lab.tasks.corpora.splits import is_split, load

logger = logging.getLogger(__name__)
_FIRST = 1000
"""Number of rows in which the names of columns are looked for."""


@dataclass(frozen=True)
class Table:
    """The chosen columns of a table.

    Args:
        name: source of the table, for messages.
        columns: name of the column of each role.
        values: cells of each role, row by row.
        lines: number of the line at which each row begins; empty where rows have no lines.
        parts: tables whose rows it has, if it is made of several.
    """

    name: str
    columns: Mapping[str, str]
    values: Mapping[str, list[Any]]
    lines: Sequence[int] = ()
    parts: Sequence[Table] = ()

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def where(self, row: int, role: str) -> str:
        """Return the place of a cell, for a message: file, line and column."""
        for part in self.parts:
            if row < len(part):
                return part.where(row, role)
            row -= len(part)
        row_name = f"line {self.lines[row]}" if len(self.lines) else f"row {row + 1}"
        return f"{self.name}, {row_name}, column '{self.columns[role]}'"

    def texts(self, role: str) -> list[str]:
        """Return the cells of a role, all of which must be text; a missing cell is an empty text.

        Their lines end with line feeds, as those of files of text do in Python.

        Raises:
            DataError: if a cell is not text; the message names file, line and column.
        """
        cells = self.values[role]
        for row, cell in enumerate(cells):
            if not isinstance(cell, str | None):
                raise DataError(f"{self.where(row, role)}: {shown_value(cell)} is not a text")
        return [(cell or "").replace("\r\n", "\n").replace("\r", "\n") for cell in cells]

    def labels(self, role: str = "label") -> list[str]:
        """Return the cells of a role as names of classes, in Unicode form NFC.

        Raises:
            DataError: if a cell is missing or no name; the message names file, line and column.
        """
        names = [name_of(cell) for cell in self.values[role]]
        for row, (cell, name) in enumerate(zip(self.values[role], names, strict=True)):
            if not name:
                why = f"{shown_value(cell)} is not a label" if name is None else "there is no label"
                hint = "; the name of a class is a text or a whole number" * isinstance(cell, float)
                raise DataError(f"{self.where(row, role)}: {why}{hint}")
        return [normalize("NFC", name or "") for name in names]


def name_of(cell: Any) -> str | None:
    """Return the name that a cell states, empty if it is missing, None if it is none.

    Example:
        >>> [name_of(cell) for cell in (" film ", 3, 3.0, True, None, 3.5, b"film")]
        ['film', '3', '3', 'true', '', None, None]
    """
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip() if isinstance(cell, str | int) else None


def is_table(source: Any) -> bool:
    """Return whether a source is a table and not plain text, by its name.

    Example:
        >>> [is_table(name) for name in ("reviews.csv.gz", "hf:stanfordnlp/imdb:test", "corpus.en")]
        [True, True, False]
    """
    name = str(source)
    return suffix(name) in (*DELIMITED, *JSON) or is_split(name)


def read_table(
    source: str | Path,
    roles: Sequence[str],
    columns: Mapping[str, str] | None = None,
    *,
    optional: Sequence[str] = (),
    names: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """Read columns of a table, and log which ones.

    Args:
        source: path or name of the table; of a folder or a name without a split, "test" is read.
        roles: roles of the columns, such as "text" and "label"; see `ROLES`.
        columns: names of the columns by role; those that are not named are guessed. "a.b" is the value "b" of
            a column "a" of mappings, and "a.b.c" the value "c" of that.
        optional: roles without which the table can be read.
        names: further names by which the column of a role is guessed.

    Raises:
        DataError: if the table cannot be read, has no column of a role or no row, or a row has too few or too
            many cells; the message names file, line and column.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "reviews.csv")
        ...     _ = file.write_text('stars,Review\\n5,"Good, and\\nlong"\\n1,NA\\n')
        ...     table = read_table(file, ["text", "label"])
        >>> dict(table.columns), table.values["text"], table.lines
        ({'text': 'Review', 'label': 'stars'}, ['Good, and\\nlong', 'NA'], [2, 4])
    """
    name = str(source)
    choice = Choice(name, roles, columns or {}, optional, names or {})
    if is_split(name):
        data, files = load(name, choice)
        if files:
            tables = [read_table(file, roles, columns, optional=optional, names=names) for file in files]
            return _joined(name, tables)
        table = _table_from_dataset(name, data, choice)
    elif suffix(name) in DELIMITED:
        table = _table_from_rows(choice, delimited_rows(name))
    else:
        table = _table_from_rows(choice, json_rows(name))
    if not len(table):
        raise DataError(f"{name}: the table has no row")
    shown = ", ".join(f"{role} is column '{column}'" for role, column in table.columns.items())
    logger.info("%s: %s rows; %s", name, f"{len(table):,}", shown)
    return table


def _joined(name: str, tables: Sequence[Table]) -> Table:
    """Return the rows of several tables as one table.

    Raises:
        DataError: if they have different roles.
    """
    first = tables[0]
    for table in tables:
        if table.columns.keys() != first.columns.keys():
            roles = (", ".join(each.columns) for each in (first, table))
            raise DataError(f"{first.name} and {table.name} have different columns: {' and '.join(roles)}")
    values = {role: [cell for table in tables for cell in table.values[role]] for role in first.values}
    return Table(name, first.columns, values, parts=tables)


def _table_from_rows(choice: Choice, rows: Iterable[tuple[int, Row]]) -> Table:
    """Return a table of rows, each with the number of its line, or of itself from -1 down."""
    rows, numbers = iter(rows), list[int]()
    first = [*itertools.islice(rows, _FIRST)]
    if not first:
        raise DataError(f"{choice.name}: the table has no row")
    columns = choice.of([row for _, row in first])
    values: dict[str, list[Any]] = {role: [] for role in columns}
    for number, row in itertools.chain(first, rows):
        where = f"{choice.name}, " + (f"line {number}" if number > 0 else f"row {-number}")
        for role, column in columns.items():
            values[role].append(_cell(row, column, where, optional=role in choice.optional))
        numbers.append(number)
    return Table(choice.name, columns, values, numbers if numbers[0] > 0 else ())


def _cell(row: Row, column: str, where: str, *, optional: bool) -> Any:
    """Return the value of a column in a row; None where an optional one is missing."""
    try:
        return value_of(row, column)
    except KeyError:
        if optional:
            return None
        there = ", ".join(map(repr, row)) or "nothing"
        raise DataError(f"{where}: no '{column}'; it has {there}"[:300]) from None


def _table_from_dataset(name: str, data: Any, choice: Choice) -> Table:
    """Return the columns of a `datasets.Dataset`, with the names of labels in place of their numbers."""
    from datasets import ClassLabel

    if not len(data):
        raise DataError(f"{name}: the table has no row")
    columns = choice.in_schema(data.data.schema)
    values: dict[str, list[Any]] = {}
    for role, column in columns.items():
        outer, feature = outer_of(column, data.column_names), value_of(data.features, column)
        values[role] = [value_of({outer: cell}, column) for cell in data[outer]]
        feature = getattr(feature, "feature", feature)
        if isinstance(feature, ClassLabel):
            values[role] = [_named(cell, feature.names) for cell in values[role]]
    return Table(name, columns, values)


def _named(cell: Any, names: Sequence[str]) -> Any:
    """Return the name of a label, or those of a list of labels; -1 marks a missing one."""
    if isinstance(cell, list):
        return [_named(each, names) for each in cell]
    return None if cell is None or cell < 0 else names[cell]
