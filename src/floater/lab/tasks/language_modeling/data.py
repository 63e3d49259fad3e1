"""Rows of token ids from text files, packed with whole sentences."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from floater.errors import DataError
from floater.lab.tasks.corpora.tables import is_table, read_table
from floater.lab.tasks.corpora.text import iter_lines
from floater.lab.tasks.examples import Collate, padded
from floater.lab.tasks.language_modeling.settings import Masking
from floater.lab.tasks.prepared import Prepared
from floater.lab.text.bpe import BOS, MASK, encode
from floater.lab.text.ragged import Groups, Ragged
from floater.transformer.outputs import IGNORED

logger = logging.getLogger(__name__)
Example = dict[str, Any]
Document = list[np.ndarray]


def read_documents(
    files: str | Sequence[str], ends: str, columns: Mapping[str, str] | None = None
) -> list[list[str]]:
    """Read the documents of text files and tables; blank lines are skipped.

    Args:
        files: path of a file, or several paths; see `tables` for those of tables.
        ends: end of a document, besides that of a file: "blank line", which in a table is the end of a row,
            "line", or nothing more, "file". Consecutive rows with the same value in a column `document` are
            one document; a row without a value is one of its own.
        columns: names of the columns of tables, by role: "text", and "document".

    Returns:
        The lines of each document, none of them empty.

    Raises:
        DataError: if a file cannot be read, there is no text in any (see `read_lines`), or columns are named
            for plain text.
    """
    names = [files] if isinstance(files, str) else list(files)
    documents: list[list[str]] = []
    for name in names:
        documents.append([])
        for line, is_end in _lines(name, columns):
            if line.strip():
                documents[-1].append(line)
            if ends == "line" or (ends == "blank line" and is_end):
                documents.append([])
    if not any(documents):
        raise DataError(f"empty corpus: no text in {', '.join(names) or 'no file'}")
    return [document for document in documents if document]


def _lines(name: str, columns: Mapping[str, str] | None) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a source, and whether a document ends with a line."""
    if not is_table(name):
        if columns:
            raise DataError(f"{name} is plain text, without the columns that data.columns names")
        yield from ((line, not line.strip()) for line in plain_lines(name))
        return
    table = read_table(name, ["text"], columns, optional=["document"])
    texts = table.texts("text")
    of = table.values.get("document") or [None] * len(texts)
    if empty := sum(not text.strip() for text in texts):
        logger.warning("%s: %s rows without a text are skipped", name, f"{empty:,}")
    for text, document, following in zip(texts, of, [*of[1:], None], strict=True):
        yield from ((line, False) for line in text.split("\n"))
        yield "", document in (None, "") or document != following


def plain_lines(name: str) -> Iterator[str]:
    """Yield the lines of plain text, with a warning if they are rows of a table."""
    for number, line in enumerate(iter_lines(name)):
        if number == 0 and line.startswith('{"') and line.endswith("}"):
            logger.warning("%s is read as plain text; if its lines are JSON, name it .jsonl", name)
        yield line


def encode_documents(
    tokenizer: PreTrainedTokenizerFast, documents: Sequence[Sequence[str]], **options: Any
) -> Groups:
    """Return the token ids of each line of each document, with the end token; see `encode`."""
    lines = (line for document in documents for line in document)
    ends = np.cumsum([len(document) for document in documents], dtype=np.int64)
    return Groups(encode(tokenizer, lines, **options), ends)


def joined(documents: Sequence[Document], end: int) -> Iterator[np.ndarray]:
    """Yield the sentences of documents as of one text, with an end token between documents.

    Args:
        documents: token ids of the sentences of each document.
        end: token id of </s>.

    Example:
        >>> list(joined([[np.array([5, 2])], [np.array([6, 2]), np.array([7, 2])]], end=2))
        [array([5, 2]), array([2], dtype=int32), array([6, 2]), array([7, 2])]
    """
    for number, document in enumerate(documents):
        if number:
            yield np.array([end], dtype=np.int32)
        yield from document


def with_mask(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Add <mask> to a vocabulary, as its last token, unless it has it already."""
    tokenizer.add_special_tokens({"mask_token": MASK})
    return tokenizer


@dataclass(frozen=True, eq=False)
class Rows(Dataset[Example]):
    """Rows of tokens, each with one or several parts.

    Args:
        ids: token ids of each row.
        parts: lengths of the parts of each row.
        cut: number of sentences that are longer than a row.
        source: documents before they were encoded, where scores need them.
    """

    ids: Ragged
    parts: Ragged
    cut: int = 0
    source: Any = None

    @classmethod
    def of(
        cls, documents: Iterable[Iterable[np.ndarray]], block: int, *, begin: int, pack: bool = True
    ) -> Rows:
        """Return rows that are filled with whole sentences in their order.

        A document that does not fit continues in the next row. Each part of a document in a row begins with
        <s>.

        Args:
            documents: token ids of the sentences of each document.
            block: maximum number of tokens of a row; longer sentences are cut into equal parts.
            begin: token id of <s>.
            pack: True to share a row among documents.

        Example:
            >>> rows = Rows.of([[np.array([5, 2]), np.array([6, 2])], [np.array([7, 2])]], 8, begin=1)
            >>> rows[0]["input_ids"].tolist(), rows[0]["parts"]
            ([1, 5, 2, 6, 2, 1, 7, 2], [5, 3])
        """
        ids, start = bytearray(), np.array([begin], dtype=np.int32).tobytes()
        ends, lengths, rows, cut, used = list[int](), list[int](), list[int](), 0, 0

        def flush() -> None:
            nonlocal used
            if used:
                ends.append(len(ids) // 4)
                rows.append(len(lengths))
            used = 0

        for document in documents:
            opened = False
            for whole in document:
                pieces = -(-len(whole) // (block - 1))
                cut += pieces > 1
                for sentence in np.array_split(whole, pieces) if pieces > 1 else [whole]:
                    if used + len(sentence) + (not opened) > block or (not pack and not opened):
                        flush()
                        opened = False
                    if not opened:
                        ids += start
                        lengths.append(1)
                        used, opened = used + 1, True
                    ids += sentence.astype(np.int32, copy=False).tobytes()
                    lengths[-1] += len(sentence)
                    used += len(sentence)
        flush()
        parts = Ragged(np.array(lengths, dtype=np.int32), np.array(rows, dtype=np.int64))
        return cls(Ragged(np.frombuffer(ids, dtype=np.int32), np.array(ends, dtype=np.int64)), parts, cut)

    @functools.cached_property
    def lengths(self) -> list[int]:
        """Return the number of tokens of each row."""
        lengths: list[int] = self.ids.lengths.tolist()
        return lengths

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Example:
        return {"input_ids": self.ids[index], "parts": self.parts[index].tolist(), "index": index}

    @property
    def tokens(self) -> int:
        """Return the number of tokens, each <s> included."""
        return len(self.ids.values)


class Streams(Dataset[Example]):
    """A running text cut into parallel streams of rows, for models with a memory of the rows before.

    The text is the concatenation of all documents, each with <s> before it. It is divided evenly among the
    streams; row r of stream s is example s * rows + r, and continues row r - 1. The last rows may be shorter.
    Each token but <s> is predicted once, the first of a row from the last of the row before.

    Args:
        documents: token ids of the sentences of each document.
        block: number of tokens of a row.
        streams: maximum number of streams.
        begin: token id of <s>.

    Example:
        >>> streams = Streams([[np.array([5, 2]), np.array([6, 2])], [np.array([7, 2])]], 2, 2, begin=1)
        >>> [streams[i]["input_ids"].tolist() for i in range(4)]
        [[1, 5], [2, 6], [2, 1], [7, 2]]
        >>> [streams[i]["labels"].tolist() for i in range(4)]
        [[5, 2], [6, 2], [-100, 7], [2, -100]]
    """

    def __init__(self, documents: Sequence[Document], block: int, streams: int, *, begin: int) -> None:
        texts = [np.concatenate([[begin], *document]) for document in documents]
        self.ids = np.concatenate(texts).astype(np.int64)
        self.documents = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
        following = np.append(self.ids[1:], begin)
        self.labels = np.where(following == begin, IGNORED, following)
        self.block, self.streams = block, max(1, min(streams, len(self.ids) // block))
        self.edges = np.arange(self.streams + 1) * len(self.ids) // self.streams
        self.rows = -(-int(np.diff(self.edges).max()) // block)
        self.lengths = [len(self[i]["input_ids"]) for i in range(len(self))]

    @property
    def tokens(self) -> int:
        """Return the number of tokens, each <s> included."""
        return len(self.ids)

    def __len__(self) -> int:
        return self.streams * self.rows

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        stream, row = divmod(index, self.rows)
        start = self.edges[stream] + row * self.block
        part = slice(start, min(start + self.block, self.edges[stream + 1]))
        fields = {"input_ids": self.ids, "labels": self.labels, "document_ids": self.documents}
        return {name: values[part] for name, values in fields.items()}


def stream_batch(examples: Sequence[Example], *, pad: int) -> dict[str, Tensor]:
    """Make a padded batch of rows of streams; labels are at the tokens whose logits predict them.

    Returns:
        `input_ids`, `labels`, `document_ids` and `attention_mask`, (batch, longest) int64.

    Example:
        >>> row = dict(zip(("input_ids", "labels", "document_ids"), np.array([[5, 2], [2, 9], [3, 3]])))
        >>> stream_batch([row, {name: values[:1] for name, values in row.items()}], pad=0)["labels"].tolist()
        [[2, 9], [2, -100]]
    """
    fill = {"input_ids": pad, "labels": IGNORED, "document_ids": -1}
    batch = {name: padded((row[name] for row in examples), value) for name, value in fill.items()}
    if not batch["input_ids"].shape[1]:
        # the last batch has no token in a process whose streams are a row shorter than another's
        batch = {name: torch.full((len(examples), 1), value) for name, value in fill.items()}
    lengths = torch.tensor([len(row["input_ids"]) for row in examples])
    there = torch.arange(batch["input_ids"].shape[1]) < lengths[:, None]
    return batch | {"attention_mask": there.long()}


def collate(examples: Sequence[Example], *, pad: int) -> dict[str, Tensor]:
    """Make a batch of rows, padded on the right.

    Returns:
        `input_ids` and `attention_mask`, (batch, longest) int64, and `document_ids` of the same shape if a
        row has several parts.

    Example:
        >>> rows = [{"input_ids": [1, 5, 1, 6], "parts": [2, 2]}, {"input_ids": [1, 7], "parts": [2]}]
        >>> collate(rows, pad=0)["document_ids"].tolist()
        [[0, 0, 1, 1], [0, 0, 0, 0]]
    """
    parts = [example["parts"] for example in examples]
    ids = padded((example["input_ids"] for example in examples), pad)
    mask = padded(np.ones(sum(lengths), dtype=np.int64) for lengths in parts)
    if max(map(len, parts)) == 1:
        return {"input_ids": ids, "attention_mask": mask}
    documents = padded((np.repeat(np.arange(len(lengths)), lengths) for lengths in parts), -1)
    last = documents.amax(1, keepdim=True)
    return {"input_ids": ids, "attention_mask": mask, "document_ids": documents.where(mask > 0, last)}


def causal_batch(examples: Sequence[Example], *, pad: int, begin: int) -> dict[str, Tensor]:
    """Make a batch for a causal model; the labels are its tokens, except for each <s> and the padding."""
    batch = collate(examples, pad=pad)
    ids = batch["input_ids"]
    nothing = (batch["attention_mask"] == 0) | (ids == begin)
    return batch | {"labels": ids.masked_fill(nothing, IGNORED)}


def masked_batch(
    examples: Sequence[Example], masking: Masking, tokenizer: PreTrainedTokenizerFast, seed: Sequence[int]
) -> dict[str, Tensor]:
    """Make a batch for a masked model; the choice of masked tokens depends only on the seed and their row.

    Args:
        examples: examples of `Rows`.
        masking: share of masked tokens, and their replacements.
        tokenizer: tokenizer with <mask>.
        seed: seed of the choice, such as the seed of the run and the epoch.
    """
    chosen = [masked(row["input_ids"], masking, tokenizer, *seed, row["index"]) for row in examples]
    read = [row | {"input_ids": ids} for row, (ids, _) in zip(examples, chosen, strict=True)]
    batch = collate(read, pad=int(tokenizer.pad_token_id))
    return batch | {"labels": padded((labels for _, labels in chosen), IGNORED)}


def masked_by(settings: Any, tokenizer: PreTrainedTokenizerFast, *seed: int) -> Collate:
    """Return `masked_batch` with the `masking` of settings; the default seed is that of the evaluation."""
    seed = seed or (settings.evaluation.seed,)
    return functools.partial(masked_batch, masking=settings.masking, tokenizer=tokenizer, seed=seed)


def epoch_collate(task: Any, prepared: Prepared, epoch: int) -> Collate:
    """Return the collate function of a task for a training epoch, whose masks differ from those of others."""
    seed = prepared.settings.training.seed, epoch
    collate: Collate = task.collate(prepared.settings, prepared.processor, prepared.model, *seed)
    return collate


def masked(
    ids: np.ndarray, masking: Masking, tokenizer: PreTrainedTokenizerFast, *seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Choose the predicted tokens of a row, and their replacements (Devlin et al. 2019, 3.1).

    Special tokens are neither chosen nor used as random replacements.

    Returns:
        The token ids with replacements, and the labels, -100 where nothing is predicted; both of the shape of
        `ids`.

    Example:
        >>> from floater.lab.text.bpe import train_bpe
        >>> tokenizer = with_mask(train_bpe(["low lower lowest"], 262))
        >>> half = Masking(rate=0.5, mask=1, random=0)
        >>> read, labels = masked(np.array([1, 100, 101, 2]), half, tokenizer, 0)
        >>> sorted(read.tolist())[-1] == tokenizer.mask_token_id, (labels != -100).sum()
        (True, np.int64(1))
    """
    random = np.random.default_rng(seed)
    special = sorted(tokenizer.all_special_ids)
    plain = np.flatnonzero(~np.isin(ids, special))
    count = min(len(plain), max(1, round(masking.rate * len(plain))))
    positions = random.permutation(plain)[:count]
    draw, any_token = random.random(count), random.integers(len(tokenizer) - len(special), size=count)
    for token in special:  # in increasing order: maps an index among the tokens that are not special to an id
        any_token += any_token >= token
    read, labels = np.array(ids, dtype=np.int64), np.full(len(ids), IGNORED)
    labels[positions] = read[positions]
    read[positions[draw < masking.mask]] = tokenizer.mask_token_id
    swapped = (draw >= masking.mask) & (draw < masking.mask + masking.random)
    read[positions[swapped]] = any_token[swapped]
    return read, labels


def begin_id(tokenizer: PreTrainedTokenizerFast) -> int:
    """Return the token id of <s>."""
    return int(tokenizer.get_vocab()[BOS])
