"""Dependency trees in the CoNLL-U format (https://universaldependencies.org/format.html)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from floater.errors import DataError
from floater.lab.tasks.corpora.rows import shown_value
from floater.lab.tasks.corpora.tables import is_table, name_of, read_table
from floater.lab.tasks.corpora.text import Path, read_lines
from floater.structures import trees

_COLUMNS = "ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC"
_GLOBAL = re.compile(r"#\s*global\.columns\s*=\s*(.*?)\s*")
"""Pattern of the line of CoNLL-U Plus that names the columns of a file."""
_NO_WORD = re.compile(r"\d+[-.]\d+")
"""Pattern of the ids of multiword tokens and of empty nodes."""
_PRINTED = re.compile(r"""\[['"]|\[(?!\s.*\s\]$).*\]$""", re.DOTALL)
"""Pattern of a list that a program printed; brackets that are words have spaces around them."""


@dataclass(frozen=True)
class Sentence:
    """A sentence and its basic dependency tree.

    Args:
        words: syntactic words.
        tags: universal part of speech of each word.
        parents: index of each word's head, -1 at the root, as `Positions.tree` takes them; empty if a head is
            unspecified (HEAD is _), as in files of tags alone.
        relations: relation of each word to its head.
        language: language of its file; None where files are not named by language.
    """

    words: list[str]
    tags: list[str]
    parents: list[int]
    relations: list[str]
    language: str | None = None


def read_conllu(path: Path) -> list[Sentence]:
    r"""Read the sentences of a file; ranges of multiword tokens and empty nodes are excluded.

    Args:
        path: path of a CoNLL-U file, plain or gzip.

    Raises:
        DataError: if the file cannot be read, or a line is malformed; the message names the line.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "two.conllu")
        ...     rows = "1 Go go VERB _ _ 0 root _ _", "2 on on ADV _ _ 1 advmod _ _"
        ...     _ = file.write_text("\n".join(row.replace(" ", "\t") for row in rows))
        ...     [(sentence.words, sentence.parents) for sentence in read_conllu(file)]
        [(['Go', 'on'], [-1, 0])]
    """
    sentences: list[Sentence] = []
    rows: dict[int, list[str]] = {}  # fields of each word by line number
    for number, line in enumerate([*read_lines(path), ""], start=1):
        if line.startswith("#"):
            if (columns := _GLOBAL.fullmatch(line)) and columns[1] != _COLUMNS:
                raise DataError(f"{path}, line {number}: the columns are {columns[1]}, not {_COLUMNS}")
            continue
        if not line.strip():
            for line_number, row in rows.items():
                if row[6] != "_" and int(row[6]) > len(rows):
                    raise DataError(f"{path}, line {line_number}: the head is {row[6]}, of {len(rows)} words")
            if rows:
                sentences.append(_sentence([*rows.values()]))
            rows = {}
            continue
        fields = line.split("\t")
        if len(fields) != 10:
            there = "is 1 field" if len(fields) == 1 else f"are {len(fields)} fields"
            raise DataError(f"{path}, line {number}: there {there}; CoNLL-U has 10, with a tab between them")
        if _NO_WORD.fullmatch(fields[0]):
            continue
        if fields[0] != str(len(rows) + 1):
            raise DataError(f"{path}, line {number}: the word has number {fields[0]}, not {len(rows) + 1}")
        for column, name in ((1, "FORM"), (3, "UPOS"), (7, "DEPREL")):
            if not fields[column].strip():
                raise DataError(f"{path}, line {number}: {name} is empty; CoNLL-U has _ there")
        if not re.fullmatch("_|[0-9]{1,9}", fields[6]):
            raise DataError(
                f"{path}, line {number}: the head is {fields[6]!r}; it must be a word's number, 0 or _"
            )
        rows[number] = fields
    return sentences


def _sentence(rows: list[list[str]]) -> Sentence:
    return Sentence(
        words=[row[1] for row in rows],
        tags=[row[3] for row in rows],
        parents=[] if any(row[6] == "_" for row in rows) else [int(row[6]) - 1 for row in rows],
        relations=[row[7] for row in rows],
    )


def read_table_sentences(source: Path, columns: Mapping[str, str]) -> list[Sentence]:
    """Read the sentences of a table, a row each, without trees.

    Args:
        source: path or name of the table, see `read_table`.
        columns: names of its columns "words" and "tags", whose cells are lists, or texts with spaces.

    Raises:
        DataError: if the table cannot be read, or a row has no word, or not a tag for each word.
    """
    table = read_table(os.fspath(source), ["words", "tags"], columns)
    sentences = []
    for row, cells in enumerate(zip(table.values["words"], table.values["tags"], strict=True)):
        words, tags = (
            _cell(cell, role, table.where(row, role))
            for cell, role in zip(cells, ("words", "tags"), strict=True)
        )
        if not words or len(words) != len(tags):
            raise DataError(f"{table.where(row, 'tags')}: {len(tags)} tags of {len(words)} words")
        sentences.append(Sentence(words, tags, [], ["_"] * len(words)))
    return sentences


def _cell(cell: Any, role: str, where: str) -> list[str]:
    """Return the words or tags of a cell: a list, or a text with spaces.

    Raises:
        DataError: if the cell is neither, or is a list that a program printed; or if an element is missing,
            as null, a blank, or a negative number in place of a tag, or is no name.
    """
    if isinstance(cell, str):
        if _PRINTED.match(cell.strip()):
            raise DataError(
                f"{where}: {shown_value(cell)} is a printed list; store lists, or texts with spaces"
            )
        return cell.split()
    if not isinstance(cell, list | tuple):
        raise DataError(f"{where}: {shown_value(cell)} is neither a list of {role} nor a text with spaces")
    names = [name_of(each) for each in cell]
    for number, (each, name) in enumerate(zip(cell, names, strict=True), start=1):
        masked = role == "tags" and isinstance(each, int | float) and each < 0
        if masked or not name:
            need = "each must be a text or a whole number" if name is None else "each word needs a tag"
            raise DataError(f"{where}: element {number} is {shown_value(each)}; {need}")
    return [name or "" for name in names]


def read_sentences(
    path: Path,
    *,
    structured: bool,
    columns: Mapping[str, str] | None = None,
    language: str | None = None,
) -> list[Sentence]:
    """Read the sentences of a CoNLL-U file or a table, and check their tags and trees.

    Args:
        path: path of the file.
        structured: True to require valid trees.
        columns: names of the columns of a table, see `read_table_sentences`.
        language: language of the sentences.

    Raises:
        DataError: if the file cannot be read or has no sentence, or if a sentence is not a tree or has a word
            without a tag.
    """
    if is_table(path):
        sentences = read_table_sentences(path, columns or {})
    elif columns:
        raise DataError(f"{path} is read as CoNLL-U, without the columns that data.columns names")
    else:
        sentences = read_conllu(path)
    if not sentences:
        raise DataError(f"{path} holds no sentence")
    for number, sentence in enumerate(sentences, start=1):
        if "_" in sentence.tags:
            word = sentence.words[sentence.tags.index("_")]
            raise DataError(f"{path}, sentence {number}: {word!r} has no tag (UPOS is _)")
    for number, sentence in enumerate(sentences if structured else (), start=1):
        if not sentence.parents:
            raise DataError(f"{path}, sentence {number}: it has a word without a head (HEAD is _)")
        try:
            trees([sentence.parents])
        except ValueError as error:
            raise DataError(f"{path}, sentence {number}: {str(error).replace('tree 0', 'it', 1)}") from error
    return sentences if language is None else [replace(each, language=language) for each in sentences]


def head_order(parents: Sequence[int], *, final: bool) -> list[int]:
    """Return the position of each word of a tree once every head is moved behind, or before, its dependents.

    Isozaki et al. 2010 (WMT, "Head Finalization") reorder English by this rule before they translate into
    Japanese; here its trees are those of dependencies. Dependents keep their order.

    Args:
        parents: index of each word's head, -1 at the root.
        final: True for heads behind their dependents, False for heads before them.

    Example:
        >>> head_order([1, -1, 3, 1], final=True)  # John saw a dog: John a dog saw
        [0, 3, 1, 2]
    """
    below: dict[int, list[int]] = {}
    for word, parent in enumerate(parents):
        below.setdefault(parent, []).append(word)
    order: list[int] = []
    stack = below[-1][::-1]
    # heads before their dependents; those behind them are the same from right to left, reversed
    while stack:
        order.append(stack.pop())
        dependents = below.get(order[-1], [])
        stack += dependents if final else dependents[::-1]
    positions = [0] * len(parents)
    for position, word in enumerate(order[::-1] if final else order):
        positions[word] = position
    return positions
