"""Batches of problems: splits without common questions, token ids, labels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from floater.errors import DataError
from floater.lab.tasks.corpora.problems import EQUALS, PROBLEMS, AnyExample, PositionedExample
from floater.lab.tasks.examples import Encoded, padded
from floater.lab.tasks.generated.settings import Data
from floater.lab.text.bpe import BOS, EOS, PAD, wrapped
from floater.positions import Positions
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


def generate(data: Data, split: Split, count: int, lengths: tuple[int, int]) -> list[AnyExample]:
    """Generate the examples of a split.

    The text of a question determines its split, so that no two splits share a question, whatever the seeds.
    Questions of problems with very few, "equal_counts", are in all splits.

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
    examples: list[AnyExample] = []
    missed = 0
    while len(examples) < count:
        try:
            example = problem.generate(data, lengths, random)
        except ValueError as error:
            raise DataError(str(error)) from error
        if not problem.disjoint or split_of(example.question) == split:
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


def encode(
    examples: Sequence[AnyExample],
    tokenizer: PreTrainedTokenizerFast,
    classifies: bool,
    aligned: bool = False,
) -> Encoded:
    """Encode examples; their lengths are in tokens.

    If the answer consists of tokens, a row is <s> question = answer </s>, and its labels are the answer and
    </s>, or only the asked tokens of the answer. If it is aligned with the question, a row is <s> question
    </s>, and a label is the token of the answer that is predicted one token before. If the answer is a class,
    a row is <s> question, and its label is the class. The fields of a `PositionedExample` become those of a
    row; see `collate`.

    Args:
        examples: examples to encode.
        tokenizer: tokenizer of the problem.
        classifies: True if the answer is a class.
        aligned: True if the answer has a token for each of the question.

    Example:
        >>> from floater.lab.tasks.corpora.problems import Example
        >>> data = Data("reverse", symbols=3)
        >>> encode([Example(["0", "2"], ["2", "0"], 2)], vocabulary(data), classifies=False)[0]
        {'input_ids': [1, 4, 6, 3, 6, 4, 2], 'labels': [-100, -100, -100, -100, 6, 4, 2]}
    """
    ids = tokenizer.get_vocab()
    rows = []
    for example in examples:
        question, answer, asked = example.question, example.answer, example.asked
        row = [ids[BOS], *(ids[word] for word in question)]
        if classifies:
            labels = [int(answer[0])]
        else:
            written = [ids[word] for word in answer]
            if aligned:
                labels, row = [IGNORED] * 2, [*row, ids[EOS]]
            else:
                written.append(ids[EOS])
                row.append(ids[EQUALS])
                labels, row = [IGNORED] * len(row), row + written
            labels += [t if asked is None or i in asked else IGNORED for i, t in enumerate(written)]
        rows.append({"input_ids": row, "labels": labels})
        if isinstance(example, PositionedExample):
            rows[-1] |= _fields(example, len(row))
    return Encoded(rows, [len(row["input_ids"]) for row in rows], examples)


def _fields(example: PositionedExample, tokens: int) -> dict[str, Any]:
    """Return the fields of the positions of a row.

    In a tree <s> is the parent of the root, in a graph it has an edge to the first token. The second
    position of a token of the question is the index at which the row writes it.
    """
    fields = dict(example.positions)
    if "parents" in fields:
        fields["parents"] = [-1, *(parent + 1 for parent in fields["parents"])]
    if "edges" in fields:
        fields["edges"] = [(0, 1), *((u + 1, v + 1) for u, v in fields["edges"])]
    if "language" in fields:
        fields["language"] = [fields["language"]] * tokens
    if "reordered" in fields:
        written = len(example.question) + 2
        second = [written + index for index in fields["reordered"]]
        fields["reordered"] = [0, *second, *range(len(second) + 1, tokens)]
    if "target_length" in fields:
        fields["target_length"] = tokens
    return fields


def collate(examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch of `input_ids`, `attention_mask` and `labels`, padded on the right except for classes.

    Examples with fields of positions have `positions` in place of the mask.

    Example:
        >>> collate([{"input_ids": [1, 5, 6], "labels": [7]}] * 2)["labels"]
        tensor([7, 7])
    """
    rows, labels = ([row[name] for row in examples] for name in ("input_ids", "labels"))
    classes = len(labels[0]) == 1
    batch: dict[str, Any] = {
        "input_ids": padded(rows),
        "labels": torch.tensor(labels).flatten() if classes else padded(labels, IGNORED),
    }
    mask = padded([1] * len(row) for row in rows)
    fields = {
        name: [row[name] for row in examples] for name in examples[0] if name not in ("input_ids", "labels")
    }
    if not fields:
        return batch | {"attention_mask": mask}
    if "parents" in fields:
        return batch | {"positions": Positions.tree(fields["parents"])}
    if "edges" in fields:
        sizes = [len(row) for row in rows]
        return batch | {"positions": Positions.graph(fields["edges"], sizes=sizes, directed=False)}
    values = {name: torch.tensor(x) if name == "target_length" else padded(x) for name, x in fields.items()}
    return batch | {"positions": Positions.from_mask(mask).but(**values)}
