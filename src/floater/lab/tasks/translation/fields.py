"""Fields of the positions of source sentences, from tables: their language, and another order of words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from floater.errors import DataError, nearest
from floater.lab.tasks.corpora.tables import Table
from floater.lab.text.ragged import Array, Ragged


@dataclass(frozen=True, eq=False)
class SourceFields:
    """Fields of source sentences.

    Args:
        language: index of the language of each sentence in `data.languages`, (sentences,); None for none.
        reordered: for each sentence the positions of its words, or of its tokens, in the other order; None
            for none.
    """

    language: Array | None = None
    reordered: Ragged | None = None

    @classmethod
    def joined(cls, parts: Sequence[SourceFields]) -> SourceFields:
        """Return the fields of the sentences of several tables, which have the same ones."""
        languages = [part.language for part in parts if part.language is not None]
        orders = [part.reordered for part in parts if part.reordered is not None]
        return cls(
            np.concatenate(languages) if languages else None,
            Ragged.of(row for part in orders for row in part) if orders else None,
        )

    def take(self, rows: Sequence[int]) -> SourceFields:
        """Return the fields of some sentences."""
        language, reordered = self.language, self.reordered
        return SourceFields(
            None if language is None else language[list(rows)],
            None if reordered is None else Ragged.of(reordered[row] for row in rows),
        )

    def spread_to_tokens(self, tokenizer: PreTrainedTokenizerFast, lines: Sequence[str]) -> SourceFields:
        """Return the fields with a second position for each token of the lines, in place of each word."""
        if self.reordered is None:
            return self
        rows = zip(lines, self.reordered, strict=True)
        return SourceFields(self.language, Ragged.of(token_order(tokenizer, line, row) for line, row in rows))

    def example(self, row: int, tokens: int) -> dict[str, Array]:
        """Return the fields of a sentence, (tokens,) each."""
        fields = {}
        if self.language is not None:
            fields["language"] = np.full(tokens, self.language[row])
        if self.reordered is not None:
            fields["reordered"] = self.reordered[row]
        return fields


def token_order(tokenizer: PreTrainedTokenizerFast, line: str, order: Sequence[int]) -> list[int]:
    """Return the positions of the tokens of a line if its words stood in another order; the end stays last.

    Args:
        tokenizer: tokenizer, which appends an end token.
        line: words separated by spaces.
        order: position of each word in the other order.

    Example:
        >>> from floater.lab.text.bpe import train_bpe
        >>> tokenizer = train_bpe(["ab ab c c"], 262)
        >>> tokenizer("c ab").tokens(), token_order(tokenizer, "c ab", [1, 0])
        (['Ġc', 'Ġab', '</s>'], [1, 0, 2])
    """
    ends = [match.end() for match in re.finditer(r"\S+", line)]
    offsets = tokenizer(line, return_offsets_mapping=True)["offset_mapping"][:-1]
    # a space belongs to the word after it, as in the tokens, so that words are counted by their ends
    words = np.searchsorted(ends, [start for start, _ in offsets], side="right")
    keys = np.asarray(order)[words.clip(max=len(ends) - 1)]
    ranks = np.argsort(np.argsort(keys, kind="stable"), kind="stable")
    return [*ranks.tolist(), len(offsets)]


def languages_of(table: Table, languages: Sequence[str]) -> list[int]:
    """Return the index of the language of each row of a table.

    Raises:
        DataError: if a language is not one of those of the settings; the message names file and line.
    """
    indices = {language: index for index, language in enumerate(languages)}
    codes = table.labels("language")
    for row, code in enumerate(codes):
        if code not in indices:
            where = table.where(row, "language")
            raise DataError(f"{where}: '{code}' is not one of data.languages; {nearest(code, languages)}")
    return [indices[code] for code in codes]


def orders_of(table: Table) -> list[list[int]]:
    """Return the position of each word of the sources of a table in the other order.

    Raises:
        DataError: if a cell is not such an order; the message names file and line.
    """
    orders = []
    for row, (line, cell) in enumerate(zip(table.texts("source"), table.values["reordered"], strict=True)):
        order = _numbers(cell)
        if order is None or sorted(order) != list(range(len(line.split()))):
            count = len(line.split())
            raise DataError(
                f"{table.where(row, 'reordered')}: it must have a position for each of the {count} words of "
                f"the source, the numbers 0 to {count - 1} in some order"
            )
        orders.append(order)
    return orders


def _numbers(cell: Any) -> list[int] | None:
    """Return the whole numbers of a cell, a list or a text with spaces; None if it has others."""
    parts = cell.split() if isinstance(cell, str) else cell or []
    try:
        numbers = [int(part) for part in parts]
    except (TypeError, ValueError):
        return None
    return numbers
