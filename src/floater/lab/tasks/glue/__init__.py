"""GLUE: classification of sentences and pairs, with official files and metrics (Wang et al. 2019)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from transformers import AutoModelForSequenceClassification

from floater.errors import DataError, nearest
from floater.lab.tasks.corpora import glue as corpus
from floater.lab.tasks.corpora.glue import SCORE_RANGE, TASKS, Examples
from floater.lab.tasks.finetuning.features import Features, encode_texts
from floater.lab.tasks.finetuning.task import FineTuning, FineTuningSettings
from floater.lab.tasks.glue.score import measure, predictions, submission
from floater.lab.tasks.measurement import Measurement
from floater.lab.tasks.prepared import Splits
from floater.lab.tasks.registry import register
from floater.lab.tasks.settings import label_maps
from floater.lab.text.tupe import tokens
from floater.lab.training.named_files import paths_in
from floater.lab.training.settings import check_numbers

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Data:
    """Source of the examples: a folder, or a dataset.

    Attributes:
        task: name of the task: CoLA, SST-2, MRPC, QQP, STS-B, MNLI, QNLI, RTE or WNLI.
        folder: folder with the official files of all tasks (glue/RTE/train.tsv) or of this one
            (RTE/train.tsv).
        dataset: name for `datasets`, such as nyu-mll/glue, in place of a folder.
        max_length: maximum number of tokens of an example, special tokens included; the number of longer ones
            is logged.
        prepare: "tupe" to prepare texts as Ke et al. 2021 do, in lower case and tokenised, for a model that
            was pretrained on the data of `floater data wiki_books`; null to leave them as they are.
        select: criterion of the best validation: "metric", the task's first metric; null for that of RoBERTa,
            which differs for STS-B alone, its loss.
    """

    task: str
    folder: str | None = None
    dataset: str | None = None
    max_length: int = 512
    prepare: Literal["tupe"] | None = None
    select: Literal["metric"] | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"unknown task of GLUE '{self.task}'; {nearest(self.task, TASKS)}")
        if (self.folder is None) == (self.dataset is None):
            raise ValueError("give exactly one of folder and dataset")
        check_numbers(self, max_length=8)


@dataclass(frozen=True, kw_only=True)
class GlueSettings(FineTuningSettings):
    """A GLUE run.

    Attributes:
        data: source of the examples.
    """

    task: Literal["glue"] = "glue"
    data: Data

    def files_read(self) -> dict[str, Any]:
        folder, dataset = self.data.folder, self.data.dataset
        if folder is None:
            return super().files_read() | {"data.dataset": paths_in(dataset)}
        task = TASKS[self.data.task]
        several = [corpus.file_paths(folder, task, split) for split in ("train", *task.valid)]
        files = [next(filter(Path.is_file, paths), paths[0]) for paths in several]
        return super().files_read() | {"data.folder": files}


@register("glue")
class Glue(FineTuning):
    """Classification, or regression, of sentences and pairs of sentences.

    The first validation set selects the best model; the final model is scored on all validation sets.
    """

    Settings = GlueSettings
    stored = (Features,)
    Auto = AutoModelForSequenceClassification

    def check_needs(self, settings: GlueSettings) -> None:
        super().check_needs(settings)
        task, folder = _task(settings), settings.data.folder
        if folder is not None:
            for split in ("train", *task.valid):
                corpus.find_file(folder, task, split)

    def head(self, settings: GlueSettings, train: Any) -> dict[str, Any]:
        labels = _task(settings).labels
        kind = {"problem_type": "single_label_classification" if labels else "regression"}
        return kind | label_maps(labels or ("score",))

    def best(self, settings: GlueSettings) -> dict[str, Any]:
        task = _task(settings)
        greater = "metric" in (settings.data.select, task.best)
        return {"metric": task.metrics[0] if greater else task.best, "greater": greater}

    def read(self, settings: GlueSettings) -> Splits:
        task, folder = _task(settings), settings.data.folder
        names = ("train", *task.valid)
        sources = names if folder is None else [corpus.find_file(folder, task, name) for name in names]
        train, *valid = (self.read_test(settings, source) for source in sources)
        return Splits(train, valid)

    def read_test(self, settings: Any, source: str | Path, *, labelled: bool = True) -> Examples:
        task, dataset = _task(settings), settings.data.dataset
        if dataset is not None and not Path(source).is_file():
            examples, source = corpus.read_dataset(dataset, str(source), task), f"{dataset}, {source}"
        else:
            examples = corpus.read_examples(source, task, labelled=labelled)
        if labelled and examples.left_out:
            logger.warning("%s: %s broken lines excluded", source, f"{examples.left_out:,}")
        if labelled and examples.labels is None:
            raise DataError(f"{source}: no labels (column '{task.label}'); `floater predict` needs none")
        return examples

    def encode(self, settings: Any, processor: Any, examples: Any, *, training: bool = False) -> Features:
        if isinstance(examples, list):  # validation sets; the first one selects the best model
            best, *others = (self.encode(settings, processor, part) for part in examples)
            best.more = dict(zip(_task(settings).valid[1:], others, strict=True))
            return best
        first, second = examples.pairs
        if settings.data.prepare == "tupe":
            first, second = [list(map(tokens, texts)) if texts else texts for texts in (first, second)]
        labels = examples.labels if training else None
        if labels and not _task(settings).labels:
            labels = [label / SCORE_RANGE[1] for label in labels]
        features = encode_texts(processor, first, second, settings.data.max_length, labels)
        features.source = None if training else examples
        return features

    def answer(self, settings: Any, features: Features, logits: Sequence[np.ndarray]) -> Measurement:
        task, examples = _task(settings), features.source
        scores = {} if examples.labels is None else measure(logits, examples.labels, task)
        return Measurement(scores=scores, lines=submission(predictions(logits, task), examples.indices, task))


def _task(settings: GlueSettings) -> corpus.GlueTask:
    return TASKS[settings.data.task]
