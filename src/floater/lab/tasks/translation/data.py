"""Batches of token ids from aligned sentences."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from floater.errors import DataError
from floater.lab.tasks.corpora import cldr
from floater.lab.tasks.corpora.text import Pairs, hub_pairs, read_lines, read_pairs
from floater.lab.tasks.examples import keep_short, padded
from floater.lab.tasks.translation.settings import Data
from floater.lab.text.bpe import encode
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
    else:
        train = _file_pairs(data.train_source, data.train_target)
        valid = _file_pairs(data.valid_source, data.valid_target)
    for name, pairs in (("training", train), ("validation", valid)):
        skipped = f"; {pairs.skipped} with an empty side skipped" if pairs.skipped else ""
        logger.info("%s %s pairs%s", f"{len(pairs.source):,}", name, skipped)
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


def _files(named: str | list[str] | None) -> list[str]:
    return [named] if isinstance(named, str) else named or []


def line_of(data: Data, pair: tuple[str, str]) -> str:
    """Return the line and the file of a training pair, for a message, or "" if the settings name no files."""
    for source, target in zip(_files(data.train_source), _files(data.train_target), strict=True):
        lines = zip(read_lines(source), read_lines(target), strict=True)
        if (number := next((n for n, line in enumerate(lines, start=1) if line == pair), None)) is not None:
            return f", line {number} of {source},"
    return ""


class TokenPairs(Dataset[Example]):
    """Encoded `pairs`; `lengths` are the numbers of tokens of the longer side, the end token included.

    Args:
        pairs: aligned sentences.
        tokenizer: tokenizer with the joint vocabulary.
        max_tokens: maximum number of tokens of a side; longer pairs are excluded, and their number is logged.

    Raises:
        DataError: if no pair is left.

    Example:
        >>> from floater.lab.text.bpe import train_bpe
        >>> pairs = Pairs(["low", "lower lowest"], ["low", "low"], 0)
        >>> examples = TokenPairs(pairs, train_bpe(pairs.source, 261), max_tokens=4)
        >>> len(examples), examples.lengths
        (1, [3])
    """

    def __init__(
        self, pairs: Pairs, tokenizer: PreTrainedTokenizerFast, max_tokens: int | None = None
    ) -> None:
        sources, targets = encode(tokenizer, pairs.source), encode(tokenizer, pairs.target)
        lengths = [max(len(s), len(t)) for s, t in zip(sources, targets, strict=True)]
        kept = keep_short(lengths, max_tokens, "pair", "tokens")
        self.lengths = [lengths[i] for i in kept]
        self.pairs = Pairs([pairs.source[i] for i in kept], [pairs.target[i] for i in kept], pairs.skipped)
        self._sides = [(sources[i], targets[i]) for i in kept]

    def __len__(self) -> int:
        return len(self._sides)

    def __getitem__(self, index: int) -> Example:
        source, target = self._sides[index]
        return {"input_ids": source, "labels": target}


def source_batch(rows: Sequence[Ids], *, pad: int) -> dict[str, Tensor]:
    """Return source sentences padded on the right, and the mask of their tokens.

    Args:
        rows: token ids of each sentence.
        pad: token id of the padding.

    Returns:
        `input_ids` and `attention_mask`, (batch, longest) int64.

    Example:
        >>> source_batch([[5, 2], [2]], pad=0)["input_ids"].tolist()
        [[5, 2], [2, 0]]
    """
    return {"input_ids": padded(rows, pad), "attention_mask": padded([1] * len(row) for row in rows)}


def collate(examples: Sequence[Example], *, pad: int) -> dict[str, Tensor]:
    """Make a batch of pairs: the batch of the sources, and `labels` padded with -100.

    Example:
        >>> pairs = [{"input_ids": [5, 2], "labels": [2]}, {"input_ids": [2], "labels": [6, 2]}]
        >>> collate(pairs, pad=0)["labels"].tolist()
        [[2, -100], [6, 2]]
    """
    batch = source_batch([example["input_ids"] for example in examples], pad=pad)
    return batch | {"labels": padded((example["labels"] for example in examples), IGNORED)}
