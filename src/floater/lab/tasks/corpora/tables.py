"""Tables of examples: CSV, TSV, JSON, JSON Lines, Parquet, Arrow, and data sets of Hugging Face.

A source is the path of a file, plain or compressed, that of a folder that `datasets` can load, or "hf:NAME",
a name on the Hugging Face hub. ":SPLIT" after a folder or a name chooses a split: "hf:stanfordnlp/imdb:test".

`datasets` finds and loads splits. Columnar files are read by Arrow, because `datasets` keeps copies of files,
which it takes for the files as long as their times are the same. Files of text are parsed by Python's own
modules: `datasets` reads them with pandas and Arrow, which guess types, so that a cell "NA" becomes nothing
and "007" becomes 7, and cannot name a line in a message.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import logging
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floater.errors import DataError, nearest, reason
from floater.lab.tasks.corpora.rows import (
    DELIMITED,
    JSON,
    Row,
    delimited_rows,
    json_rows,
    shown_value,
    suffix,
)
from floater.lab.tasks.corpora.text import PACKED, load_split
from floater.lab.training.named_files import file_of

logger = logging.getLogger(__name__)
HUB = "hf:"
SPLITS = {"train": ("train",), "valid": ("validation", "valid", "val", "dev"), "test": ("test",)}
"""Names that a split may have."""
ROLES: dict[str, tuple[str, ...]] = {
    "text": ("text", "review", "content", "sentence", "article", "body", "document", "comment", "message"),
    "label": ("label", "labels", "class", "category", "sentiment", "rating", "stars"),
    "source": ("source", "src", "source_text"),
    "target": ("target", "tgt", "target_text"),
    "language": ("language", "lang"),
    "reordered": ("reordered", "order"),
    "document": ("document_id", "doc_id", "document", "doc"),
    "words": ("words", "tokens"),
    "tags": ("tags", "pos_tags", "upos", "pos", "ner_tags"),
}
"""Names by which the column of a role is guessed, in any case, the first first."""
_COLUMNAR = (".parquet", ".arrow")
_TEXTS = {*DELIMITED, *JSON}
_SAVED = ("dataset_dict.json", "state.json")
"""Files of a folder that `save_to_disk` wrote."""
_FIRST = 1000
"""Number of rows in which the names of a mapping are looked for."""
_LEVELS = 16
"""Number of levels of mappings whose names are columns."""
_NAME = re.compile(r"hf:([\w.-]+(?:/[\w.-]+)?)(?:/([\w.-]+))?(?::([^:/]+))?")


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
        """Return the cells of a role as names of classes.

        Raises:
            DataError: if a cell is missing or no name; the message names file, line and column.
        """
        names = [name_of(cell) for cell in self.values[role]]
        for row, (cell, name) in enumerate(zip(self.values[role], names, strict=True)):
            if not name:
                why = f"{shown_value(cell)} is not a label" if name is None else "there is no label"
                hint = "; the name of a class is a text or a whole number" * isinstance(cell, float)
                raise DataError(f"{self.where(row, role)}: {why}{hint}")
        return [name or "" for name in names]


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
    return (
        name.startswith(HUB) or suffix(name) in (*DELIMITED, *JSON, *_COLUMNAR) or _folder(name)[0].is_dir()
    )


def with_split(source: Any, split: str) -> Any:
    """Return a source with a split, if it is a folder or a data set without one; others have no splits.

    Example:
        >>> with_split("hf:stanfordnlp/imdb", "valid"), with_split("corpus.csv", "valid")
        ('hf:stanfordnlp/imdb:valid', 'corpus.csv')
        >>> with_split(["hf:stanfordnlp/imdb:unsupervised"], "train")
        ['hf:stanfordnlp/imdb:unsupervised']
    """
    if isinstance(source, list):
        return [with_split(each, split) for each in source]
    name = str(source)
    is_whole = Path(name).is_dir() or (name.startswith(HUB) and ":" not in name.removeprefix(HUB))
    return f"{name}:{split}" if is_whole else source


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
    choice = _Choice(name, roles, dict(columns or {}), optional, names or {})
    if name.startswith(HUB) or _folder(name)[0].is_dir() or suffix(name) in _COLUMNAR:
        data, files = _load(name, choice)
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


class _Choice:
    """The columns of a table that are read, by role; the others are not kept in memory."""

    def __init__(
        self,
        name: str,
        roles: Sequence[str],
        columns: dict[str, str],
        optional: Sequence[str],
        names: Mapping[str, Sequence[str]],
    ) -> None:
        self.name, self.roles, self.columns, self.optional, self.names = name, roles, columns, optional, names
        if unknown := columns.keys() - {*roles, *optional}:
            hint = nearest(min(unknown), [*roles, *optional])
            raise DataError(f"data.columns has '{min(unknown)}', which this task does not read; {hint}")

    def of(self, header: Sequence[str], where: str) -> dict[str, str]:
        """Return the column of each role.

        Raises:
            DataError: if there is none, or one that the settings name is missing.
        """
        header = [*dict.fromkeys(header)]
        chosen: dict[str, str] = {}
        for role, column in self.columns.items():
            if column not in header:
                raise DataError(
                    f"{where}: no column '{column}', data.columns.{role}; {nearest(column, header)}"
                )
            chosen[role] = column
        for role in [role for role in (*self.roles, *self.optional) if role not in chosen]:
            free = [column for column in header if column not in chosen.values()]
            guesses = (*self.names.get(role, ()), *ROLES[role])
            if (guess := next((guess for guess in guesses if _spelt(guess, free)), None)) is not None:
                chosen[role], *others = _spelt(guess, free)
                if others:
                    raise DataError(
                        f"{where}: columns '{chosen[role]}' and '{others[0]}' may both be that of role "
                        f"'{role}'; {columns_advice(role)}"
                    )
            elif len(header) == 1 and [*self.roles] == [role]:
                chosen[role] = header[0]
            elif role not in self.optional:
                shown = ", ".join(map(repr, header[:12])) + ", ..." * (len(header) > 12)
                raise DataError(
                    f"{where}: no column '{role}' or the like; there are: {shown}; {columns_advice(role)}"
                )
        return {role: chosen[role] for role in (*self.roles, *self.optional) if role in chosen}


def columns_advice(role: str) -> str:
    """Return how a person names the column of a role, for messages."""
    return f"choose one: data.columns.{role}=NAME, of a trained run --columns {role}=NAME"


def _spelt(name: str, columns: Sequence[str]) -> list[str]:
    """Return the column with a name, or without one those that differ from it in case and blanks alone."""
    return [name] if name in columns else [each for each in columns if each.strip().lower() == name]


def _table_from_rows(choice: _Choice, rows: Iterable[tuple[int, Row]]) -> Table:
    """Return a table of rows, each with the number of its line, or of itself from -1 down."""
    rows, numbers = iter(rows), list[int]()
    first = [*itertools.islice(rows, _FIRST)]
    if not first:
        raise DataError(f"{choice.name}: the table has no row")
    columns = choice.of(_header([row for _, row in first]), choice.name)
    values: dict[str, list[Any]] = {role: [] for role in columns}
    for number, row in itertools.chain(first, rows):
        where = f"{choice.name}, " + (f"line {number}" if number > 0 else f"row {-number}")
        for role, column in columns.items():
            values[role].append(_cell(row, column, where))
        numbers.append(number)
    return Table(choice.name, columns, values, numbers if numbers[0] > 0 else ())


def _header(rows: Sequence[Row], levels: int = _LEVELS) -> list[str]:
    """Return the columns of the first row, and after them "a.b" for each name in the first mapping of one."""
    inner: list[str] = []
    for name in rows[0] if levels > 1 else ():
        mappings = [cell for row in rows if isinstance(cell := row.get(name), Mapping)]
        inner += [f"{name}.{key}" for key in (_header(mappings, levels - 1) if mappings else ())]
    return [*rows[0], *inner]


def _cell(row: Row, column: str, where: str) -> Any:
    try:
        return _value(row, column)
    except KeyError:
        there = ", ".join(map(repr, row)) or "nothing"
        raise DataError(f"{where}: no '{column}'; it has {there}"[:300]) from None


def _value(row: Any, column: str) -> Any:
    """Return the value of a column, where "a.b" is the value "b" of a mapping "a"; None in a missing mapping.

    Raises:
        KeyError: if there is none.
    """
    outer = _outer(column, row if isinstance(row, Mapping) else ())
    if outer == column or row[outer] is None:
        return row[outer]
    return _value(row[outer], column[len(outer) + 1 :])


def _outer(column: str, names: Collection[str]) -> str:
    """Return the name that a column "a.b.c" is in or is: "a.b.c" itself, "a" or "a.b".

    Raises:
        KeyError: if there is none.
    """
    if column in names:
        return column
    for dot in re.finditer(r"\.", column):
        if (outer := column[: dot.start()]) in names:
            return outer
    raise KeyError(column)


def _table_from_dataset(name: str, data: Any, choice: _Choice) -> Table:
    """Return the columns of a `datasets.Dataset`, with the names of labels in place of their numbers."""
    from datasets import ClassLabel

    if not len(data):
        raise DataError(f"{name}: the table has no row")
    columns = _columns(name, data.data.schema, choice)
    values: dict[str, list[Any]] = {}
    for role, column in columns.items():
        outer, feature = _outer(column, data.column_names), _value(data.features, column)
        values[role] = [_value({outer: cell}, column) for cell in data[outer]]
        feature = getattr(feature, "feature", feature)
        if isinstance(feature, ClassLabel):
            values[role] = [_named(cell, feature.names) for cell in values[role]]
    return Table(name, columns, values)


def _columns(name: str, schema: Any, choice: _Choice) -> dict[str, str]:
    """Return the columns of a choice in the schema of Arrow."""
    import pyarrow as pa

    def row(fields: Any) -> Row:
        return {each.name: row(each.type) if pa.types.is_struct(each.type) else None for each in fields}

    return choice.of(_header([row(schema)]), name)


def _named(cell: Any, names: Sequence[str]) -> Any:
    """Return the name of a label, or those of a list of labels; -1 marks a missing one."""
    if isinstance(cell, list):
        return [_named(each, names) for each in cell]
    return None if cell is None or cell < 0 else names[cell]


def _load(name: str, choice: _Choice) -> tuple[Any, list[str]]:
    """Load a split of a folder, of a columnar file or of a data set on the hub.

    Of a columnar file the chosen columns alone are read.

    Returns:
        The `datasets.Dataset`; or None, and the files of the split if they are text that `read_table` parses.

    Raises:
        DataError: if there are no such data, or no such split.
    """
    import datasets
    from datasets.packaged_modules.csv.csv import Csv

    hub = _NAME.fullmatch(name)
    if name.startswith(HUB) and hub is None:
        raise DataError(f"{name}: not of the form hf:NAME, hf:OWNER/NAME/CONFIGURATION or hf:NAME:SPLIT")
    if hub and _is_saved(Path(hub[1])):
        raise DataError(f"{name}: {hub[1]} is a folder written by save_to_disk; leave out hf:")
    folder, chosen = (None, hub[3]) if hub else _folder(name)
    wanted = SPLITS.get(chosen or "test", (str(chosen),))
    where = hub[1] if hub else str(folder)
    with _quiet(name), tempfile.TemporaryDirectory() as fresh:
        if folder is not None and not folder.is_dir():
            return datasets.Dataset(_columnar(name, choice), fingerprint=name), []  # or it would be hashed
        if folder is not None and _is_saved(folder):
            data = datasets.load_from_disk(where)
            return (data[_split(name, data, wanted)] if isinstance(data, dict) else data), []
        if folder is not None and glob.has_magic(where):
            raise DataError(f"{name}: the package datasets reads *, ? and [ as a pattern; rename the folder")
        # the cache of `datasets` tells files of a folder by their times alone
        options: dict[str, Any] = {"cache_dir": fresh} if Path(where).is_dir() else {}
        builder = datasets.load_dataset_builder(where, hub[2] if hub else None, **options)
        files = builder.config.data_files or {}
        suffixes = {suffix(file) for part in files.values() for file in part}
        columnar = _COLUMNAR if builder.info.features is None else ()  # a card may name the labels
        if folder is not None and suffixes <= {*_TEXTS, *columnar}:
            return None, list(files[_split(name, files, wanted)])
        chosen = _split(name, builder.info.splits or files, wanted)
        missing = {"keep_default_na": False} if isinstance(builder, Csv) else {}  # "NA" is a text
        return load_split(where, hub[2] if hub else None, chosen, **missing), []


def _is_saved(folder: Path) -> bool:
    """Return whether `save_to_disk` wrote a folder."""
    return any((folder / file).is_file() for file in _SAVED)


def _columnar(name: str, choice: _Choice) -> Any:
    """Return the chosen columns of a Parquet or Arrow file, plain or compressed."""
    import pyarrow as pa
    import pyarrow.parquet

    unpack: Any = PACKED.get(Path(name).suffix.lower(), ("", b"", open))[2]
    parquet = suffix(name) == ".parquet"
    with pa.memory_map(name) if unpack is open and not parquet else unpack(name, "rb") as file:
        if parquet:
            table = pa.parquet.ParquetFile(file)
            columns = _columns(name, table.schema_arrow, choice).values()
            return table.read(columns=[*{_outer(column, table.schema_arrow.names) for column in columns}])
        try:
            return pa.ipc.open_stream(file).read_all()
        except pa.ArrowInvalid:  # the format of files, which can be read at random
            file.seek(0)
            return pa.ipc.open_file(file).read_all()


def _split(name: str, splits: Iterable[str], wanted: Sequence[str]) -> str:
    names = list(map(str, splits))
    chosen = next((each for each in wanted if each in names), None)
    if chosen is None:
        bare = name.removesuffix(f":{wanted[0]}")
        raise DataError(
            f"{name}: no split '{wanted[0]}'; there are: {', '.join(names)}; choose one: {bare}:{names[0]}"
        )
    return chosen


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Convert any failure of `datasets` into one message, and show none of its progress bars."""
    from datasets.utils import logging as datasets_logging

    shown, level = datasets_logging.is_progress_bar_enabled(), datasets_logging.get_verbosity()
    datasets_logging.disable_progress_bar()
    datasets_logging.set_verbosity(logging.CRITICAL)  # what fails is in the message
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # files and servers of strangers: any error of any code that reads them
        raise DataError(f"{name}: cannot be loaded ({reason(error)})"[:500]) from error
    finally:
        datasets_logging.set_verbosity(level)
        if shown:
            datasets_logging.enable_progress_bar()


def _folder(name: str) -> tuple[Path, str | None]:
    """Return the path of a source, and the split that its name chooses."""
    path = file_of(name)
    return path, name.removeprefix(f"{path}:") if path.is_dir() and not Path(name).is_dir() else None
