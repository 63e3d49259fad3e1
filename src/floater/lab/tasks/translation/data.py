"""Batches of token ids from aligned sentences."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from floater.errors import DataError
from floater.lab.tasks.corpora import cldr
from floater.lab.tasks.corpora.splits import with_split
from floater.lab.tasks.corpora.tables import Table, is_table, read_table
from floater.lab.tasks.corpora.text import Pairs, hub_pairs, read_lines, read_pairs
from floater.lab.tasks.examples import keep_short, padded
from floater.lab.tasks.prepared import warn_of_shared
from floater.lab.tasks.translation.fields import SourceFields, languages_of, orders_of
from floater.lab.tasks.translation.settings import Data
from floater.lab.text.bpe import encode
from floater.lab.text.ragged import Ragged
from floater.positions import Positions
from floater.transformer.outputs import IGNORED

logger = logging.getLogger(__name__)
Ids = Sequence[int] | np.ndarray
Example = dict[str, Ids]


def load_corpus(data: Data) -> tuple[Pairs, Pairs]:
    """Read, download or generate the sentences that the settings name, and log their numbers.

    Args:
        data: settings of the data.

    Returns:
        Training and validation pairs.

    Raises:
        DataError: see `floater.lab.tasks.corpora.text.read_pairs`.
    """
    if data.builtin:
        train, valid = _builtin_pairs(data)
    elif data.dataset:
        name, config, languages = data.dataset, data.dataset_config, (data.source, data.target)
        train, valid = (hub_pairs(name, config, split, *languages) for split in ("train", "validation"))
    elif data.train is not None:
        train, valid = (
            table_pairs(with_split(getattr(data, name), name), data) for name in ("train", "valid")
        )
    else:
        train = _file_pairs(data.train_source, data.train_target)
        valid = _file_pairs(data.valid_source, data.valid_target)
    for name, pairs in (("training", train), ("validation", valid)):
        skipped = f"; {pairs.skipped} with an empty side skipped" if pairs.skipped else ""
        logger.info("%s %s pairs%s", f"{len(pairs.source):,}", name, skipped)
    trained, validating = (zip(pairs.source, pairs.target, strict=True) for pairs in (train, valid))
    warn_of_shared(trained, validating, tuple, "pairs")
    return train, valid


def _builtin_pairs(data: Data) -> tuple[Pairs, Pairs]:
    try:
        parts = cldr.split(source=data.source, target=data.target, seed=data.builtin_seed, train=data.builtin)
    except ValueError as error:
        raise DataError(f"built-in corpus: {error}") from error
    train, valid = (list(zip(*parts[name], strict=True)) for name in ("train", "valid"))
    return Pairs(list(train[0]), list(train[1]), 0), Pairs(list(valid[0]), list(valid[1]), 0)


def _file_pairs(source: str | list[str] | None, target: str | list[str] | None) -> Pairs:
    sources, targets = _files(source), _files(target)
    if len(sources) != len(targets) or not sources:
        raise DataError(f"{len(sources)} source files and {len(targets)} target files; they must be aligned")
    parts = [read_pairs(s, t) for s, t in zip(sources, targets, strict=True)]
    lines, translations = (
        [x for part in parts for x in getattr(part, side)] for side in ("source", "target")
    )
    return Pairs(lines, translations, sum(part.skipped for part in parts))


def table_pairs(source: Any, data: Data | None, *, skip_empty: bool = True) -> Pairs:
    """Read the pairs of a table, or of several.

    Args:
        source: path or name of a table, or a list of them; see `read_table`.
        data: settings of the data, with the names of columns and the codes of the languages.
        skip_empty: as for `read_pairs`.

    Raises:
        DataError: if a table cannot be read, a cell is not text, or no pair is left.
    """
    columns, names = (data.columns, _language_names(data)) if data is not None else (None, None)
    pairs: list[tuple[str, str]] = []
    fields = []
    for name in [source] if isinstance(source, str) else source:
        if not is_table(name):
            raise DataError(
                f"{name}: not a table (.csv, .tsv, .jsonl, .json, .parquet); text is data.train_source"
            )
        table = read_table(name, ["source", "target", *field_roles(data)], columns, names=names)
        pairs += zip(table.texts("source"), table.texts("target"), strict=True)
        fields.append(_fields(table, data))
    kept = [row for row, pair in enumerate(pairs) if not skip_empty or (pair[0].strip() and pair[1].strip())]
    if not kept:
        raise DataError(f"empty corpus: no pair of sentences in the {len(pairs)} rows of {source}")
    # a line break within a cell would break the lines of `floater translate`
    sources, targets = ([" ".join(pairs[row][side].split("\n")) for row in kept] for side in (0, 1))
    joined = SourceFields.joined(fields) if field_roles(data) else None
    return Pairs(sources, targets, len(pairs) - len(kept), joined and joined.take(kept))


def field_roles(data: Data | None) -> list[str]:
    """Return the columns with fields of the sources that settings name."""
    return [role for role in ("language", "reordered") if data is not None and role in data.columns]


def refuse_text(source: Any, data: Data | None) -> None:
    """Refuse plain text for a run that reads fields of the sources.

    Raises:
        DataError: if the run's settings name columns with fields.
    """
    if roles := field_roles(data):
        columns = " and ".join(f"data.columns.{role}" for role in roles)
        raise DataError(f"{source} is plain text, but the run reads {columns}: give a table")


def _fields(table: Table, data: Data | None) -> SourceFields:
    roles = field_roles(data)
    language = np.array(languages_of(table, data.languages)) if data and "language" in roles else None
    return SourceFields(language, Ragged.of(orders_of(table)) if "reordered" in roles else None)


def read_sources(source: str, data: Data | None) -> tuple[list[str], SourceFields | None]:
    """Read the sentences to translate: the lines of a text file, or the source column of a table.

    Returns:
        The sentences, and the fields of the sources that the run's settings name.

    Raises:
        DataError: if the file cannot be read, or a cell is not a text or a field.
    """
    if not is_table(source):
        refuse_text(source, data)
        return read_lines(source), None
    columns = {role: name for role, name in data.columns.items() if role != "target"} if data else {}
    names = {"source": (*_language_names(data)["source"], "text")} if data else None
    table = read_table(source, ["source", *field_roles(data)], columns, names=names)
    lines = [" ".join(text.split("\n")) for text in table.texts("source")]
    return lines, _fields(table, data) if field_roles(data) else None


def _language_names(data: Data) -> dict[str, Sequence[str]]:
    return {
        role: (code.lower(), f"translation.{code.lower()}")
        for role, code in (("source", data.source), ("target", data.target))
    }


def read_test_pairs(source: Any, reference: Any, data: Data | None, *, skip_empty: bool = False) -> Pairs:
    """Read the pairs of a test set: two text files, or a table, which needs no reference.

    Raises:
        DataError: see `read_pairs` and `table_pairs`; or if a table has a reference, or a text file none.
    """
    if not is_table(source):
        refuse_text(source, data)
        if reference is None:
            raise DataError(f"{source} is plain text; name its translations with --reference")
        return read_pairs(source, reference, skip_empty=skip_empty)
    if reference is not None:
        raise DataError(f"{source} is a table with both sides; leave --reference out")
    return table_pairs(str(source), data, skip_empty=skip_empty)


def _files(named: str | list[str] | None) -> list[str]:
    return [named] if isinstance(named, str) else named or []


def line_of(data: Data, number: int, part: str = "train") -> str:
    """Return the line and the file of a pair, or the tables that it is in, for a message; "" without files.

    Args:
        data: settings of the data.
        number: number of the pair, from 0, among those without an empty side.
        part: "train" or "valid".
    """
    sides = (_files(getattr(data, f"{part}_{side}")) for side in ("source", "target"))
    for source, target in zip(*sides, strict=True):
        for line, pair in enumerate(zip(read_lines(source), read_lines(target), strict=True), start=1):
            if all(side.strip() for side in pair):
                if number == 0:
                    return f", line {line} of {source},"
                number -= 1
    tables = _files(getattr(data, part))
    return f" of {', '.join(map(str, tables))}" if tables else ""


@dataclass(frozen=True, eq=False)
class TokenPairs(Dataset[Example]):
    """Encoded pairs.

    Args:
        sources: token ids of the source of each pair.
        targets: token ids of the target of each pair.
        kept: indices of the pairs that are examples, (examples,) int64.
        pairs: aligned sentences of all examples, where scores need them.
        fields: fields of the positions of the sources, a second position for each token; None for none.

    Example:
        >>> from floater.lab.text.bpe import train_bpe
        >>> pairs = Pairs(["low", "lower lowest"], ["low", "low"], 0)
        >>> examples = TokenPairs.of(pairs, train_bpe(pairs.source, 261), max_tokens=4)
        >>> len(examples), examples.lengths
        (1, [3])
    """

    sources: Ragged
    targets: Ragged
    kept: np.ndarray
    pairs: Any = None
    fields: Any = None

    @classmethod
    def of(
        cls, pairs: Pairs, tokenizer: PreTrainedTokenizerFast, max_tokens: int | None = None
    ) -> TokenPairs:
        """Encode pairs.

        Args:
            pairs: aligned sentences.
            tokenizer: tokenizer with the joint vocabulary.
            max_tokens: maximum number of tokens of a side; longer pairs are excluded, and their number is
                logged.

        Raises:
            DataError: if no pair is left.
        """
        sources, targets = encode(tokenizer, pairs.source), encode(tokenizer, pairs.target)
        lengths = np.maximum(sources.lengths, targets.lengths).tolist()
        kept = np.array(keep_short(lengths, max_tokens, "pair", "tokens"), dtype=np.int64)
        fields = None if pairs.fields is None else pairs.fields.spread_to_tokens(tokenizer, pairs.source)
        return cls(sources, targets, kept, pairs if max_tokens is None else None, fields)

    @functools.cached_property
    def lengths(self) -> list[int]:
        """Return the number of tokens of the longer side of each example, the end token included."""
        lengths: list[int] = np.maximum(self.sources.lengths, self.targets.lengths)[self.kept].tolist()
        return lengths

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> Example:
        pair = int(self.kept[index])
        return source_example(self.sources, self.fields, pair) | {"labels": self.targets[pair]}


def source_example(sources: Ragged, fields: SourceFields | None, row: int) -> Example:
    """Return the token ids of a source, and the fields of its positions."""
    ids = sources[row]
    return {"input_ids": ids} | ({} if fields is None else fields.example(row, len(ids)))


def source_batch(examples: Sequence[Example], *, pad: int) -> dict[str, Any]:
    """Return source sentences padded on the right, the mask of their tokens, and positions with fields.

    Args:
        examples: `input_ids` of each sentence, and the fields of its positions.
        pad: token id of the padding.

    Returns:
        `input_ids` and `attention_mask`, (batch, longest) int64, and `positions` if there are fields.

    Example:
        >>> source_batch([{"input_ids": [5, 2]}, {"input_ids": [2]}], pad=0)["input_ids"].tolist()
        [[5, 2], [2, 0]]
    """
    rows = [example["input_ids"] for example in examples]
    mask = padded([1] * len(row) for row in rows)
    batch: dict[str, Any] = {"input_ids": padded(rows, pad), "attention_mask": mask}
    names = [name for name in ("language", "reordered") if name in examples[0]]
    if names:
        fields: dict[str, Any] = {name: padded(example[name] for example in examples) for name in names}
        batch["positions"] = Positions.from_mask(mask).but(**fields)
    return batch


def collate(examples: Sequence[Example], *, pad: int) -> dict[str, Any]:
    """Make a batch of pairs: the batch of the sources, and `labels` padded with -100.

    Example:
        >>> pairs = [{"input_ids": [5, 2], "labels": [2]}, {"input_ids": [2], "labels": [6, 2]}]
        >>> collate(pairs, pad=0)["labels"].tolist()
        [[2, -100], [6, 2]]
    """
    return source_batch(examples, pad=pad) | {
        "labels": padded((example["labels"] for example in examples), IGNORED)
    }
