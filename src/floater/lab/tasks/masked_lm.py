"""Masked language modelling with a Hugging Face checkpoint, for example to pretrain a plugged flow alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast

from floater.errors import DataError
from floater.lab.tasks.examples import Collate
from floater.lab.tasks.finetuning.text import Texts, TextSettings, TextTask, as_rows, documents_of, special
from floater.lab.tasks.language_modeling.data import Rows, epoch_collate, masked_by
from floater.lab.tasks.language_modeling.settings import Masking
from floater.lab.tasks.language_modeling.trainer import LanguageModelTrainer
from floater.lab.tasks.prepared import Prepared
from floater.lab.tasks.registry import register
from floater.lab.training.settings import check_numbers

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """Settings of the evaluation, in validation and in `floater evaluate`.

    Attributes:
        max_tokens: maximum number of tokens in a batch.
        seed: seed of the choice of masked tokens.
    """

    max_tokens: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, positive=("max_tokens",), seed=0)


@dataclass(frozen=True, kw_only=True)
class MaskedLMSettings(TextSettings):
    """A masked_lm run; with plug.train "flow" only the flow is trained.

    Attributes:
        masking: choice of the tokens that are predicted.
        evaluation: measurement of the loss.
    """

    task: Literal["masked_lm"] = "masked_lm"
    masking: Masking = field(default_factory=Masking)
    evaluation: Evaluation = field(default_factory=Evaluation)


@register("masked_lm")
class MaskedLM(TextTask):
    """Prediction of masked tokens by a checkpoint, of which all or only the flow is trained.

    Source: Liu et al. 2020, sections 4.4 and B.3 (the flow is trained alone, for one epoch on WikiText-103).
    The result also contains the loss before the first step, as `loss_before`.
    """

    Settings = MaskedLMSettings
    Auto = AutoModelForMaskedLM
    Trainer = LanguageModelTrainer
    stored = (Rows,)

    def encode(self, settings: Any, processor: Any, examples: Texts, *, training: bool = False) -> Any:
        path = settings.model.path
        if processor.mask_token_id is None:
            raise DataError(f"{path}: the tokenizer has no token to mask with")
        rows = encode(processor, examples, settings.data.block)
        if not rows:
            raise DataError(f"{path}: the tokenizer makes no token of the text")
        special = processor.all_special_ids
        if not np.isin(rows.ids.values, special, invert=True).any():
            raise DataError("the text has no token to predict")
        return rows

    def question(self, settings: Any, metric: str, test: Mapping[str, Any] | None) -> Any:
        return super().question(settings, metric, test), settings.masking, settings.evaluation.seed

    def before(self, prepared: Prepared) -> dict[str, Any]:
        loss = self.validate(prepared).scores["loss"]
        logger.info("loss before training %.4f nats a token", loss)
        return {"loss_before": loss}

    def collate(self, settings: Any, processor: Any, model: Any, *seed: int) -> Collate:
        return masked_by(settings, processor, *seed)

    training_collate = epoch_collate


def encode(tokenizer: PreTrainedTokenizerFast, documents: Texts, block: int) -> Rows:
    """Encode documents in rows, each a part of one document between the checkpoint's special tokens.

    Args:
        tokenizer: tokenizer of the checkpoint.
        documents: lines of each document, which are joined with spaces.
        block: maximum number of tokens of a row.
    """
    before, after = special(tokenizer)
    room = block - len(before) - len(after)
    return as_rows(
        [*before, *ids[start : start + room], *after]
        for ids in documents_of(tokenizer, documents)
        for start in range(0, len(ids), room)
    )
