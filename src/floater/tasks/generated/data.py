"""From draws to batches: splits that share no question, token ids, labels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from floater.errors import DataError
from floater.tasks.bpe import BOS, EOS, PAD
from floater.tasks.corpora.problems import EQUALS, PROBLEMS, Drawn
from floater.tasks.examples import Encoded
from floater.tasks.generated.settings import Data
from floater.transformer.outputs import IGNORED

Split = Literal["train", "valid", "test"]
_SHARES: dict[Split, range] = {"valid": range(1), "test": range(1, 2), "train": range(2, 10)}
_TRIES = 1000


def split_of(question: Sequence[str]) -> Split:
    """The split that a question belongs to, whoever draws it: a tenth validates, a tenth tests.

    Example:
        >>> split_of(["3", "1", "2"])
        'train'
    """
    digest = hashlib.blake2b(" ".join(question).encode(), digest_size=8).digest()
    tenth = int.from_bytes(digest, "big") % 10
    return next(split for split, tenths in _SHARES.items() if tenth in tenths)


def draw(data: Data, split: Split, count: int, lengths: tuple[int, int]) -> list[Drawn]:
    """Examples of a split.

    Every question belongs to one split by its own text, so no question of one is in another, for any seeds.

    Args:
        data: the problem and the seed.
        split: which one.
        count: how many.
        lengths: least and greatest length, drawn evenly; expressions of ListOps as long as they come.

    Raises:
        DataError: if there are hardly any questions of such lengths in the split.

    Example:
        >>> draw(Data("sort", symbols=5), "train", 1, (3, 3))
        [Drawn(question=['0', '1', '4'], answer=['0', '1', '4'], length=3, asked=None)]
    """
    problem = PROBLEMS[data.problem]
    splits = list(_SHARES).index(split)
    random = np.random.default_rng([data.seed, splits, *lengths])
    found: list[Drawn] = []
    missed = 0
    while len(found) < count:
        try:
            drawn = problem.draw(data, lengths, random)
        except ValueError as error:
            raise DataError(str(error)) from error
        if split_of(drawn.question) == split:
            found.append(drawn)
            missed = 0
        elif (missed := missed + 1) == _TRIES:
            raise DataError(
                f"{_TRIES:,} draws of '{data.problem}' with lengths {lengths[0]} to {lengths[1]} gave no "
                f"{split} example; there are too few questions: take greater lengths or more symbols"
            )
    return found


def vocabulary(data: Data) -> PreTrainedTokenizerFast:
    """The tokens of a problem, as a tokenizer of words between spaces.

    Example:
        >>> vocabulary(Data("addition"))("1 2 + 3 =").input_ids
        [6, 7, 4, 8, 3]
    """
    ids = {word: i for i, word in enumerate((PAD, BOS, EOS, *PROBLEMS[data.problem].words(data)))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_input_names=["input_ids", "attention_mask"],
    )


def encode(drawn: Sequence[Drawn], tokenizer: PreTrainedTokenizerFast, classifies: bool) -> Encoded:
    """Encode examples; their lengths are in tokens.

    A row of a problem whose answer is tokens is <s> question = answer </s>, and its labels are the answer and
    </s>, or the tokens of the answer that are asked; one whose answer is a class is <s> question, and its
    label is the class.

    Args:
        drawn: the examples.
        tokenizer: of the problem.
        classifies: whether the answer is a class.

    Example:
        >>> data = Data("reverse", symbols=3)
        >>> encode([Drawn(["0", "2"], ["2", "0"], 2)], vocabulary(data), classifies=False)[0]
        {'input_ids': [1, 4, 6, 3, 6, 4, 2], 'labels': [-100, -100, -100, -100, 6, 4, 2]}
    """
    ids = tokenizer.get_vocab()
    rows = []
    for question, answer, _, asked in drawn:
        row = [ids[BOS], *(ids[word] for word in question)]
        labels = [int(answer[0])] if classifies else []
        if not classifies:
            written = [*(ids[word] for word in answer), ids[EOS]]
            row.append(ids[EQUALS])
            wanted = [t if asked is None or i in asked else IGNORED for i, t in enumerate(written)]
            labels = [IGNORED] * len(row) + wanted
            row += written
        rows.append({"input_ids": row, "labels": labels})
    return Encoded(rows, [len(row["input_ids"]) for row in rows], drawn)


def collate(examples: Sequence[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Make a batch padded on the right: `input_ids`, `attention_mask`, `labels`; a class is not padded.

    Example:
        >>> collate([{"input_ids": [1, 5, 6], "labels": [7]}] * 2)["labels"]
        tensor([7, 7])
    """
    rows, labels = ([torch.tensor(row[name]) for row in examples] for name in ("input_ids", "labels"))
    classes = len(labels[0]) == 1
    return {
        "input_ids": pad_sequence(rows, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in rows], batch_first=True),
        "labels": torch.cat(labels) if classes else pad_sequence(labels, True, padding_value=IGNORED),
    }
