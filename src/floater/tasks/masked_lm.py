"""Masked language modelling with a Hugging Face checkpoint, as the pretraining of a plugged flow alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast

from floater.errors import DataError
from floater.tasks.bpe import ENCODED_AT_ONCE
from floater.tasks.examples import Encoded
from floater.tasks.finetuning import CheckpointTask, FineTuningSettings, Head
from floater.tasks.finetuning.extension import training_positions
from floater.tasks.finetuning.features import readable
from floater.tasks.finetuning.settings import Training as FineTuning
from floater.tasks.language_modeling.data import read_documents
from floater.tasks.language_modeling.score import masked_score
from floater.tasks.language_modeling.settings import Masking, TextData
from floater.tasks.language_modeling.trainer import LanguageModelTrainer
from floater.tasks.measurement import Measurement
from floater.tasks.registry import register
from floater.tasks.settings import check_block
from floater.tasks.task import Prepared
from floater.training.run import evaluating
from floater.training.settings import check_numbers

logger = logging.getLogger(__name__)
Texts = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Evaluation:
    """How the loss is measured, in validation and in `floater evaluate`.

    Attributes:
        max_tokens: tokens in a batch.
        seed: of the tokens that are masked.
    """

    max_tokens: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, positive=("max_tokens",), seed=0)


@dataclass(frozen=True)
class Training(FineTuning):
    """Optimisation. Defaults are those of fairseq's RoBERTa on WikiText-103, for one epoch."""

    learning_rate: float = 5e-4
    per_device_train_batch_size: int | None = None
    num_train_epochs: int = 1
    weight_decay: float = 0.01


@dataclass(frozen=True, kw_only=True)
class MaskedLMSettings(FineTuningSettings):
    """A masked_lm run; with plug.train "flow" the flow learns alone.

    Attributes:
        data: where the text comes from, and how it is cut.
        masking: which tokens are predicted.
        evaluation: how the loss is measured.
    """

    objective: ClassVar[str] = "masked"
    random_positions: ClassVar[bool] = True

    task: Literal["masked_lm"] = "masked_lm"
    data: TextData
    masking: Masking = field(default_factory=Masking)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_block(f"data.block is {self.data.block}", self.data.block, self.training)


@register("masked_lm")
class MaskedLM(CheckpointTask):
    """Prediction of masked tokens by a checkpoint, or by the flow in it alone.

    Source: Liu et al. 2020, sections 4.4 and B.3 (the flow is trained alone, for one epoch on WikiText-103).
    The result also has the loss before the first step, as `loss_before`.
    """

    Settings = MaskedLMSettings
    HEAD = Head(AutoModelForMaskedLM)
    metric, greater, example = "loss", False, "row"

    def read_test(self, settings: MaskedLMSettings, source: Any) -> Texts:
        return read_documents(source, settings.data.documents)

    def encode(self, settings: Any, processor: Any, examples: Texts, *, training: bool = False) -> Any:
        path = settings.model.path
        if processor.mask_token_id is None:
            raise DataError(f"{path}: the tokenizer has no token to mask with")
        rows = encode(processor, examples, settings.data.block)
        if not rows:
            raise DataError(f"{path}: the tokenizer makes no token of the text")
        special = processor.all_special_ids
        if not any(np.isin(row["input_ids"], special, invert=True).any() for row in rows.rows):
            raise DataError("the text has no token to predict")
        return rows

    def check_model(self, settings: Any, model: Any, processor: Any, examples: Encoded, name: str) -> None:
        longest = max((row["input_ids"] for row in examples.rows), key=len)
        with readable(f"rows of {len(longest)} tokens", "data.block"), evaluating(model):
            model(torch.from_numpy(longest).long()[None])

    def before(self, prepared: Prepared) -> dict[str, Any]:
        loss = self.validate(prepared).scores["loss"]
        logger.info("loss before training %.4f nats a token", loss)
        return {"loss_before": loss}

    def trainer(self, prepared: Prepared, run: Path, **options: Any) -> LanguageModelTrainer:
        trainer = LanguageModelTrainer(
            settings=prepared.settings,
            tokenizer=prepared.processor,
            run=run,
            model=prepared.model,
            lengths=prepared.train.lengths,
            train_dataset=prepared.train,
            validate=lambda: self.validate(prepared).scores,
        )
        return training_positions(trainer, prepared.settings)

    def score(self, settings: Any, model: Any, processor: Any, examples: Any) -> Measurement:
        asked = settings.evaluation
        how = {"seed": asked.seed, "max_tokens": asked.max_tokens}
        with readable(f"rows of {max(examples.lengths)} tokens", "data.block"):
            return masked_score(model, examples, settings.masking, processor, **how)


def encode(tokenizer: PreTrainedTokenizerFast, documents: Texts, block: int) -> Encoded:
    """Encode documents in rows, each a part of one document between the checkpoint's special tokens.

    Args:
        tokenizer: of the checkpoint.
        documents: their lines, which are joined with spaces.
        block: the most tokens of a row.
    """
    before, after = special(tokenizer)
    room = block - len(before) - len(after)
    return as_rows(
        [*before, *ids[start : start + room], *after]
        for ids in documents_of(tokenizer, documents)
        for start in range(0, len(ids), room)
    )


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
