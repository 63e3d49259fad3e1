"""GLUE: single sentences and pairs, from official files to official metrics (Wang et al. 2019)."""

from __future__ import annotations

import difflib
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from transformers import AutoModelForSequenceClassification

from floater.errors import DataError
from floater.tasks.corpora.glue import SCORE_RANGE, TASKS, Examples, find_file, read_dataset, read_examples
from floater.tasks.finetuning import Features, FineTuning, FineTuningSettings, Head
from floater.tasks.finetuning.features import LABEL, encode
from floater.tasks.glue.score import measure, predictions, submission
from floater.tasks.measurement import Measurement
from floater.tasks.registry import register
from floater.tasks.task import Splits
from floater.training.settings import check_numbers

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Data:
    """The examples: from a folder, or from a dataset.

    Attributes:
        task: CoLA, SST-2, MRPC, QQP, STS-B, MNLI, QNLI, RTE or WNLI.
        folder: with the official files of all tasks (glue/RTE/train.tsv) or of this one (RTE/train.tsv).
        dataset: instead, a name for `datasets`, as nyu-mll/glue.
        max_length: tokens of an example, special ones included; longer ones are truncated, and this is
            logged.
    """

    task: str
    folder: str | None = None
    dataset: str | None = None
    max_length: int = 512

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            lower = {name.lower(): name for name in TASKS}
            near = difflib.get_close_matches(self.task.lower(), lower, n=1)
            hint = f"did you mean '{lower[near[0]]}'?" if near else f"there are: {', '.join(TASKS)}"
            raise ValueError(f"unknown task of GLUE '{self.task}'; {hint}")
        if (self.folder is None) == (self.dataset is None):
            raise ValueError("give exactly one of folder and dataset")
        check_numbers(self, max_length=8)


@dataclass(frozen=True, kw_only=True)
class GlueSettings(FineTuningSettings):
    """A GLUE run.

    Attributes:
        data: the examples.
    """

    task: Literal["glue"] = "glue"
    data: Data


@register("glue")
class Glue(FineTuning):
    """Classification, or regression, of sentences and pairs of them.

    The first validation set chooses the best model; the final one is scored on all of them.
    """

    Settings = GlueSettings

    def head(self, settings: GlueSettings) -> Head:
        labels = TASKS[settings.data.task].labels
        config: dict[str, Any] = {"problem_type": "single_label_classification" if labels else "regression"}
        names = labels or ("score",)
        config["id2label"] = dict(enumerate(names))
        config["label2id"] = {name: i for i, name in enumerate(names)}
        return Head(AutoModelForSequenceClassification, config)

    def metric_of(self, settings: GlueSettings) -> str:
        task = TASKS[settings.data.task]
        return task.metrics[0] if task.best == "metric" else task.best

    def greater_of(self, settings: GlueSettings) -> bool:
        return self.metric_of(settings) != "loss"

    def read(self, settings: GlueSettings) -> Splits:
        valid = {split: self._split(settings, split) for split in TASKS[settings.data.task].valid}
        return Splits(self._split(settings, "train"), valid)

    def encode(self, settings: Any, processor: Any, examples: Any, *, training: bool = False) -> Features:
        if not isinstance(examples, dict):
            return super().encode(settings, processor, examples, training=training)
        first, *others = (super(Glue, self).encode(settings, processor, part) for part in examples.values())
        first.more = dict(zip([*examples][1:], others, strict=True))
        return first

    def _split(self, settings: GlueSettings, split: str) -> Examples:
        data, task = settings.data, TASKS[settings.data.task]
        if data.dataset is not None:
            examples, place = read_dataset(data.dataset, split, task), f"{data.dataset}, {split}"
        else:
            file = find_file(data.folder or "", task, split)
            examples, place = read_examples(file, task), str(file)
        if examples.labels is None:
            raise DataError(f"{place}: there are no labels (column '{task.label}') to learn from")
        if examples.left_out:
            logger.info("%s broken lines of %s left out", f"{examples.left_out:,}", split)
        return examples

    def read_source(self, settings: Any, source: str, *, labelled: bool) -> Examples:
        data, task = settings.data, TASKS[settings.data.task]
        if data.dataset is not None and not Path(source).exists():
            examples = read_dataset(data.dataset, source, task)
        else:
            examples = read_examples(source, task, labelled=labelled)
        if labelled and examples.left_out:
            warnings.warn(f"{source}: {examples.left_out:,} broken lines are left out", stacklevel=2)
        if labelled and examples.labels is None:
            raise DataError(f"{source} has no labels to score with; `floater predict` writes predictions")
        return examples

    def features(self, settings: Any, tokenizer: Any, examples: Examples, training: bool) -> Features:
        task = TASKS[settings.data.task]
        found = encode(tokenizer, *examples.pairs, settings.data.max_length)
        for row, label in zip(found.rows if training else (), examples.labels or [], strict=False):
            row[LABEL] = label if task.labels else label / SCORE_RANGE[1]
        return found

    def answer(self, settings: Any, features: Features, logits: Sequence[np.ndarray]) -> Measurement:
        task, examples = TASKS[settings.data.task], features.source
        scores = {} if examples.labels is None else measure(logits, examples.labels, task)
        return Measurement(scores=scores, lines=submission(predictions(logits, task), examples.indices, task))
