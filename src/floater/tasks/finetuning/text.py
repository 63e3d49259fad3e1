"""Checkpoints that are trained on plain text: what masked and causal language models share."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedTokenizerFast

from floater.tasks.bpe import ENCODED_AT_ONCE
from floater.tasks.examples import Encoded
from floater.tasks.finetuning.settings import Training
from floater.tasks.finetuning.task import CheckpointTask, FineTuningSettings
from floater.tasks.language_modeling.data import read_documents
from floater.tasks.language_modeling.settings import TextData
from floater.tasks.settings import check_block
from floater.training.settings import TrainingSettings

Texts = Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class TextSettings(FineTuningSettings):
    """A run on plain text. Defaults are those of fairseq's RoBERTa on WikiText-103, for one epoch.

    Attributes:
        data: where the text comes from, and how it is cut.
    """

    random_positions: ClassVar[bool] = True

    data: TextData
    training: TrainingSettings = field(
        default_factory=lambda: Training(
            learning_rate=5e-4, per_device_train_batch_size=None, num_train_epochs=1, weight_decay=0.01
        )
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_block(f"data.block is {self.data.block}", self.data.block, self.training)


class TextTask(CheckpointTask):
    """A task whose examples are rows of documents, scored by the loss of their tokens."""

    metric, greater, example = "loss", False, "row"

    def read_test(self, settings: Any, source: Any) -> Texts:
        return read_documents(source, settings.data.documents)


def as_rows(rows: Iterable[list[int]]) -> Encoded:
    """Return rows of token ids as encoded examples."""
    arrays = [np.array(row, dtype=np.int32) for row in rows]
    made = [{"input_ids": row, "parts": [len(row)], "index": i} for i, row in enumerate(arrays)]
    return Encoded(made, [len(row) for row in arrays])


def documents_of(tokenizer: PreTrainedTokenizerFast, documents: Texts) -> Iterator[list[int]]:
    """Yield the token ids of each document, without special ones."""
    lines = [f" {line.strip()}" if i else line.strip() for d in documents for i, line in enumerate(d)]
    encoded: list[list[int]] = []
    for start in range(0, len(lines), ENCODED_AT_ONCE):
        part = lines[start : start + ENCODED_AT_ONCE]
        # not verbose: a line that is longer than the model reads is cut below
        options = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
        encoded += tokenizer(part, **options)["input_ids"]
    rest = iter(encoded)
    for document in documents:
        yield list(chain.from_iterable(next(rest) for _ in document))


def special(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """Return the special tokens before and after a text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, mask = encoded["input_ids"], encoded["special_tokens_mask"]
    first, last = mask.index(0), len(mask) - mask[::-1].index(0)
    return ids[:first], ids[last:]
