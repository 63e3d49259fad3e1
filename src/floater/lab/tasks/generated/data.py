"""Batches of problems: splits without common questions, token ids, labels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from floater.errors import DataError
from floater.lab.tasks.corpora.problems import EQUALS, PROBLEMS, Example
from floater.lab.tasks.examples import Encoded, padded
from floater.lab.tasks.generated.settings import Data
from floater.lab.text.bpe import BOS, EOS, PAD, wrapped
from floater.transformer.outputs import IGNORED

Split = Literal["train", "valid", "test"]
_SHARES: dict[Split, range] = {"valid": range(1), "test": range(1, 2), "train": range(2, 10)}
_TRIES = 1000


def split_of(question: Sequence[str]) -> Split:
    """Return the split of a question, whatever the seed: a tenth is for validation, a tenth for the test.

    Example:
        >>> split_of(["3", "1", "2"])
        'train'
    """
    digest = hashlib.blake2b(" ".join(question).encode(), digest_size=8).digest()
    tenth = int.from_bytes(digest, "big") % 10
    return next(split for split, tenths in _SHARES.items() if tenth in tenths)


def generate(data: Data, split: Split, count: int, lengths: tuple[int, int]) -> list[Example]:
    """Generate the examples of a split.

    The text of a question determines its split, so that no two splits share a question, whatever the seeds.

    Args:
        data: problem and seed.
        split: split to generate.
        count: number of examples.
        lengths: least and greatest length; lengths are uniformly distributed, except those of ListOps, which
            follow from its expressions.

    Raises:
        DataError: if there are too few questions of such lengths in the split.

    Example:
        >>> generate(Data("sort", symbols=5), "train", 1, (3, 3))
        [Example(question=['0', '1', '4'], answer=['0', '1', '4'], length=3, asked=None)]
    """
    problem = PROBLEMS[data.problem]
    splits = list(_SHARES).index(split)
    random = np.random.default_rng([data.seed, splits, *lengths])
    examples: list[Example] = []
    missed = 0
    while len(examples) < count:
        try:
            example = problem.generate(data, lengths, random)
        except ValueError as error:
            raise DataError(str(error)) from error
        if split_of(example.question) == split:
            examples.append(example)
            missed = 0
        elif (missed := missed + 1) == _TRIES:
            raise DataError(
                f"{_TRIES:,} examples of '{data.problem}' with lengths {lengths[0]} to {lengths[1]} gave no "
                f"{split} example; there are too few questions: take greater lengths or more symbols"
            )
    return examples


def vocabulary(data: Data) -> PreTrainedTokenizerFast:
    """Make the tokenizer of a problem, whose tokens are words separated by spaces.

    Example:
        >>> vocabulary(Data("addition"))("1 2 + 3 =").input_ids
        [6, 7, 4, 8, 3]
    """
    ids = {word: i for i, word in enumerate((PAD, BOS, EOS, *PROBLEMS[data.problem].words(data)))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return wrapped(tokenizer)


def encode(examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, classifies: bool) -> Encoded:
    """Encode examples; their lengths are in tokens.

    If the answer consists of tokens, a row is <s> question = answer </s>, and its labels are the answer and
    </s>, or only the asked tokens of the answer. If the answer is a class, a row is <s> question, and its
    label is the class.

    Args:
        examples: examples to encode.
        tokenizer: tokenizer of the problem.
        classifies: True if the answer is a class.

    Example:
        >>> data = Data("reverse", symbols=3)
        >>> encode([Example(["0", "2"], ["2", "0"], 2)], vocabulary(data), classifies=False)[0]
        {'input_ids': [1, 4, 6, 3, 6, 4, 2], 'labels': [-100, -100, -100, -100, 6, 4, 2]}
    """
    ids = tokenizer.get_vocab()
    rows = []
    for question, answer, _, asked in examples:
        row = [ids[BOS], *(ids[word] for word in question)]
        labels = [int(answer[0])] if classifies else []
        if not classifies:
            written = [*(ids[word] for word in answer), ids[EOS]]
            row.append(ids[EQUALS])
            wanted = [t if asked is None or i in asked else IGNORED for i, t in enumerate(written)]
            labels = [IGNORED] * len(row) + wanted
            row += written
        rows.append({"input_ids": row, "labels": labels})
    return Encoded(rows, [len(row["input_ids"]) for row in rows], examples)


def collate(examples: Sequence[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Make a batch of `input_ids`, `attention_mask` and `labels`, padded on the right except for classes.

    Example:
        >>> collate([{"input_ids": [1, 5, 6], "labels": [7]}] * 2)["labels"]
        tensor([7, 7])
    """
    rows, labels = ([row[name] for row in examples] for name in ("input_ids", "labels"))
    classes = len(labels[0]) == 1
    return {
        "input_ids": padded(rows),
        "attention_mask": padded([1] * len(row) for row in rows),
        "labels": torch.tensor(labels).flatten() if classes else padded(labels, IGNORED),
    }
