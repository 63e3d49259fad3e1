"""From aligned sentences to batches of token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from floater.tasks import cldr
from floater.tasks.text import DataError, Pairs, read_pairs
from floater.tasks.translation.settings import Data

IGNORED = -100


@dataclass(frozen=True)
class Corpus:
    """Training and validation pairs."""

    train: Pairs
    valid: Pairs


def load_corpus(data: Data, say: Callable[[str], None] = print) -> Corpus:
    """Read, download or make the sentences that the settings name.

    Args:
        data: the settings.
        say: told how many pairs there are and how many were skipped.

    Returns:
        Training and validation pairs.

    Raises:
        DataError: see `floater.tasks.text.read_pairs`.
    """
    if data.builtin:
        parts = cldr.split(source=data.source, target=data.target, seed=data.builtin_seed, train=data.builtin)
        train, valid = (
            Pairs([s for s, _ in parts[name]], [t for _, t in parts[name]], 0) for name in ("train", "valid")
        )
        corpus = Corpus(train, valid)
    elif data.dataset:
        corpus = Corpus(_hub_pairs(data, "train"), _hub_pairs(data, "validation"))
    else:
        corpus = Corpus(
            _file_pairs(data.train_source, data.train_target), _file_pairs(data.valid_source, data.valid_target)
        )
    for name, pairs in (("training", corpus.train), ("validation", corpus.valid)):
        skipped = f"; {pairs.skipped} with an empty side skipped" if pairs.skipped else ""
        say(f"{len(pairs.source):,} {name} pairs{skipped}")
    return corpus


def _file_pairs(source: str | list[str] | None, target: str | list[str] | None) -> Pairs:
    sources = [source] if isinstance(source, str) else source or []
    targets = [target] if isinstance(target, str) else target or []
    if len(sources) != len(targets):
        raise DataError(f"{len(sources)} source files and {len(targets)} target files; they must be aligned")
    parts = [read_pairs(s, t) for s, t in zip(sources, targets, strict=True)]
    return Pairs(
        [line for part in parts for line in part.source],
        [line for part in parts for line in part.target],
        sum(part.skipped for part in parts),
    )


def _hub_pairs(data: Data, split: str) -> Pairs:
    import datasets

    try:
        rows = datasets.load_dataset(data.dataset, data.dataset_config, split=split)["translation"]
    except Exception as error:  # the hub's many ways to fail are one thing to the reader: no data
        raise DataError(f"data set {data.dataset} ({split}) cannot be loaded: {str(error).splitlines()[0]}") from error
    pairs = [(row[data.source], row[data.target]) for row in rows]
    kept = [(s, t) for s, t in pairs if s.strip() and t.strip()]
    if not kept:
        raise DataError(f"data set {data.dataset} ({split}) holds no pair {data.source}-{data.target}")
    return Pairs([s for s, _ in kept], [t for _, t in kept], len(pairs) - len(kept))


class TokenPairs(Dataset[dict[str, list[int]]]):
    """Encoded pairs; `lengths` are the tokens of the longer side.

    Args:
        pairs: sentences.
        tokenizer: the joint vocabulary.
        max_tokens: pairs with a longer side are left out; `dropped` counts them.

    Raises:
        DataError: if no pair is left.
    """

    def __init__(self, pairs: Pairs, tokenizer: PreTrainedTokenizerFast, max_tokens: int | None = None) -> None:
        sources = tokenizer(pairs.source)["input_ids"]
        targets = tokenizer(pairs.target)["input_ids"]
        examples = [{"input_ids": s, "labels": t} for s, t in zip(sources, targets, strict=True)]
        self.examples = [
            x for x in examples if max_tokens is None or max(len(x["input_ids"]), len(x["labels"])) <= max_tokens
        ]
        self.dropped = len(examples) - len(self.examples)
        if not self.examples:
            raise DataError(f"no pair is left: all {len(examples)} are longer than {max_tokens} tokens")
        self.lengths = [max(len(x["input_ids"]), len(x["labels"])) for x in self.examples]

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return self.examples[index]


def collate(examples: Sequence[dict[str, Any]], *, pad: int) -> dict[str, Tensor]:
    """Pad examples on the right: `input_ids` with `pad`, `labels` with -100, and the source mask."""

    def padded(name: str, value: int) -> Tensor:
        rows = [torch.tensor(example[name]) for example in examples]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)

    lengths = torch.tensor([len(example["input_ids"]) for example in examples])
    source = padded("input_ids", pad)
    mask = torch.arange(source.shape[1])[None] < lengths[:, None]
    return {"input_ids": source, "attention_mask": mask.long(), "labels": padded("labels", IGNORED)}
