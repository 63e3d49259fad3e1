"""The columns of a table that are read: by the names of their roles, and in mappings within mappings."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from floater.errors import DataError, nearest
from floater.lab.tasks.corpora.rows import Row

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
_LEVELS = 16
"""Number of levels of mappings whose names are columns."""


@dataclass(frozen=True)
class Choice:
    """The columns of a table that are read, by role; the others are not kept in memory.

    Args:
        name: source of the table, for messages.
        roles: roles of the columns; see `ROLES`.
        columns: names of the columns by role; those that are not named are guessed.
        optional: roles without which the table can be read.
        names: further names by which the column of a role is guessed.

    Raises:
        DataError: if a column is named for another role, or one column for two.
    """

    name: str
    roles: Sequence[str]
    columns: Mapping[str, str]
    optional: Sequence[str]
    names: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        if unknown := self.columns.keys() - {*self.roles, *self.optional}:
            hint = nearest(min(unknown), [*self.roles, *self.optional])
            raise DataError(f"data.columns has '{min(unknown)}', which this task does not read; {hint}")
        roles = dict[str, str]()
        for role, column in self.columns.items():
            if (other := roles.setdefault(column, role)) != role:
                raise DataError(f"data.columns names '{column}' for both '{other}' and '{role}'")

    def of(self, rows: Sequence[Row]) -> dict[str, str]:
        """Return the column of each role, of those that rows have.

        Raises:
            DataError: if there is none, or one that the settings name is missing.
        """
        header, where = [*dict.fromkeys(_header(rows))], self.name
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

    def in_schema(self, schema: Any) -> dict[str, str]:
        """Return the column of each role, of those of a schema of Arrow."""
        import pyarrow as pa

        def row(fields: Any) -> Row:
            return {each.name: row(each.type) if pa.types.is_struct(each.type) else None for each in fields}

        return self.of([row(schema)])


def columns_advice(role: str) -> str:
    """Return how a person names the column of a role, for messages."""
    return f"choose one: data.columns.{role}=NAME, of a trained run --columns {role}=NAME"


def _spelt(name: str, columns: Sequence[str]) -> list[str]:
    """Return the column with a name, or without one those that differ from it in case and blanks alone."""
    return [name] if name in columns else [each for each in columns if each.strip().lower() == name]


def _header(rows: Sequence[Row], levels: int = _LEVELS) -> list[str]:
    """Return the columns of rows, and after them "a.b" for each name "b" in mappings "a"."""
    names, inner = dict.fromkeys(name for row in rows for name in row), list[str]()
    for name in names if levels > 1 else ():
        mappings = [cell for row in rows if isinstance(cell := row.get(name), Mapping)]
        inner += [f"{name}.{key}" for key in _header(mappings, levels - 1)]
    return [*names, *inner]


def value_of(row: Any, column: str) -> Any:
    """Return the value of a column, where "a.b" is the value "b" of a mapping "a"; None in a missing mapping.

    Raises:
        KeyError: if there is none.
    """
    outer = outer_of(column, row if isinstance(row, Mapping) else ())
    if outer == column or row[outer] is None:
        return row[outer]
    return value_of(row[outer], column[len(outer) + 1 :])


def outer_of(column: str, names: Collection[str]) -> str:
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
