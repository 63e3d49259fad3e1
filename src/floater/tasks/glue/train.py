"""Fine-tuning on a task of GLUE, scores and predictions of a finished run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from floater.settings import load
from floater.tasks import finetuning
from floater.tasks.finetuning import Features, Head, Parts, fine_tune, load_finished
from floater.tasks.finetuning.features import LABEL, encode, warn_of_cuts
from floater.tasks.glue.data import Examples, find_file, read_dataset, read_examples
from floater.tasks.glue.score import measure, predictions, submission
from floater.tasks.glue.settings import Data, GlueSettings
from floater.tasks.glue.tasks import SCORE_RANGE, TASKS, GlueTask
from floater.tasks.run import SETTINGS, Say, trained
from floater.tasks.text import DataError


def train(settings: GlueSettings) -> Path:
    """Fine-tune a checkpoint on a task of GLUE, or go on with a run that was stopped.

    See `floater.tasks.finetuning.fine_tune`.

    Args:
        settings: of the run.

    Returns:
        The run directory.

    Raises:
        DataError: if the data, the checkpoint or the run directory is not what it must be.
    """
    return trained(settings, _train)


def _train(settings: GlueSettings, run: Path, state: PartialState, say: Say) -> Path:
    task, data = TASKS[settings.data.task], settings.data
    examples = _labelled(data, "train", task)
    valid = {split: _labelled(data, split, task) for split in task.valid}
    said = ", ".join(f"{len(part):,} of {split}" for split, part in valid.items())
    say(f"{task.name}: {len(examples):,} training examples; validation: {said}")
    for name, part in {"train": examples, **valid}.items():
        if part.left_out:
            say(f"{part.left_out:,} broken lines of {name} left out")

    def prepare(tokenizer: PreTrainedTokenizerFast) -> Parts:
        features = {split: encode(tokenizer, *part.pairs, data.max_length) for split, part in valid.items()}

        def of(split: str) -> Callable[[PreTrainedModel], dict[str, float]]:
            def measured(model: PreTrainedModel) -> dict[str, float]:
                outputs = finetuning.predict(model, features[split], tokenizer)
                return measure(outputs, valid[split].labels or [], task)

            return measured

        def final(model: PreTrainedModel) -> dict[str, Any]:
            found = of(task.valid[0])(model)
            for split in task.valid[1:]:
                found |= {f"{name}_{split}": value for name, value in of(split)(model).items()}
            return found

        best = task.metrics[0] if task.best == "metric" else task.best
        return Parts(
            _features(tokenizer, examples, task, data.max_length),
            list(features.values()),
            of(task.valid[0]),
            best,
            greater=best != "loss",
            final=final,
        )

    return fine_tune(settings, run, state, say, head(task), prepare)


def evaluate(run: str | Path, source: str) -> tuple[dict[str, float], list[str]]:
    """Score a run's final model on a labelled file of its task.

    Args:
        run: a finished run directory.
        source: a file of the run's task; or, of a run that has a dataset, a split of that.

    Returns:
        The metrics, and the predictions as lines of a submission.

    Raises:
        DataError: if the run or the file is not what it must be, or there are no labels.
    """
    settings, task, examples = _source(run, source, labelled=True)
    if examples.left_out:
        warnings.warn(f"{source}: {examples.left_out:,} broken lines are left out", stacklevel=2)
    if examples.labels is None:
        raise DataError(f"{source} has no labels to score with; `floater predict` writes predictions")
    outputs = _outputs(settings, run, examples)
    return measure(outputs, examples.labels, task), submission(
        predictions(outputs, task), examples.indices, task
    )


def predict(run: str | Path, source: str) -> list[str]:
    """Predictions of a run's final model, as lines of a file that the benchmark takes.

    Args:
        run: a finished run directory.
        source: as for `evaluate`; labels are not read.

    Raises:
        DataError: if the run or the file is not what it must be.
    """
    settings, task, examples = _source(run, source, labelled=False)
    return submission(predictions(_outputs(settings, run, examples), task), examples.indices, task)


def head(task: GlueTask) -> Head:
    """The head of a task: a class for each label, or one score."""
    config: dict[str, Any] = {"problem_type": "single_label_classification" if task.labels else "regression"}
    names = task.labels or ("score",)
    config["id2label"] = dict(enumerate(names))
    config["label2id"] = {name: i for i, name in enumerate(names)}
    return Head(AutoModelForSequenceClassification, config)


def _source(run: str | Path, source: str, *, labelled: bool) -> tuple[GlueSettings, GlueTask, Examples]:
    settings = load(GlueSettings, Path(run) / SETTINGS)
    task = TASKS[settings.data.task]
    if settings.data.dataset is not None and not Path(source).exists():
        return settings, task, read_dataset(settings.data.dataset, source, task)
    return settings, task, read_examples(source, task, labelled=labelled)


def _outputs(settings: GlueSettings, run: str | Path, examples: Examples) -> list[np.ndarray]:
    model, tokenizer = load_finished(run, head(TASKS[settings.data.task]))
    features = encode(tokenizer, *examples.pairs, settings.data.max_length)
    warn_of_cuts(features)
    return finetuning.predict(model, features, tokenizer)


def _labelled(data: Data, split: str, task: GlueTask) -> Examples:
    if data.dataset is not None:
        examples, place = read_dataset(data.dataset, split, task), f"{data.dataset}, {split}"
    else:
        file = find_file(data.folder or "", task, split)
        examples, place = read_examples(file, task), str(file)
    if examples.labels is None:
        raise DataError(f"{place}: there are no labels (column '{task.label}') to learn from")
    return examples


def _features(
    tokenizer: PreTrainedTokenizerFast, examples: Examples, task: GlueTask, max_length: int
) -> Features:
    features = encode(tokenizer, *examples.pairs, max_length)
    for row, label in zip(features.rows, examples.labels or [], strict=True):
        row[LABEL] = label if task.labels else label / SCORE_RANGE[1]
    return features
