"""Fine-tuning on RACE, scores and predictions of a finished run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from accelerate import PartialState
from transformers import AutoModelForMultipleChoice, PreTrainedModel, PreTrainedTokenizerFast

from floater.settings import load
from floater.tasks import finetuning
from floater.tasks.finetuning import Head, Parts, fine_tune, load_finished
from floater.tasks.finetuning.features import warn_of_cuts
from floater.tasks.race.data import LETTERS, LEVELS, Question, features, read_race
from floater.tasks.race.settings import RaceSettings
from floater.tasks.run import SETTINGS, Say, trained
from floater.tasks.text import DataError

HEAD = Head(AutoModelForMultipleChoice)


def train(settings: RaceSettings) -> Path:
    """Fine-tune a checkpoint on RACE, or go on with a run that was stopped.

    See `floater.tasks.finetuning.fine_tune`.

    Args:
        settings: of the run.

    Returns:
        The run directory.

    Raises:
        DataError: if the data, the checkpoint or the run directory is not what it must be.
    """
    return trained(settings, _train)


def _train(settings: RaceSettings, run: Path, state: PartialState, say: Say) -> Path:
    questions, valid = _labelled(settings.data.train), _labelled(settings.data.valid)
    say(f"{len(questions):,} training questions, {len(valid):,} validation questions")

    def prepare(tokenizer: PreTrainedTokenizerFast) -> Parts:
        lengths = settings.data.max_length, settings.data.max_option
        encoded, read = (features(tokenizer, part, *lengths) for part in (questions, valid))

        def measure(model: PreTrainedModel) -> dict[str, float]:
            return accuracies(_choices(finetuning.predict(model, read, tokenizer)), valid)

        return Parts(encoded, [read], measure, "accuracy", greater=True)

    return fine_tune(settings, run, state, say, HEAD, prepare)


def evaluate(run: str | Path, source: str) -> tuple[dict[str, float], dict[str, str]]:
    """Score a run's final model on a split of RACE.

    Args:
        run: a finished run directory.
        source: a folder of RACE with answers (see `read_race`).

    Returns:
        Accuracies, and the letters of the answers by question.

    Raises:
        DataError: if the run or the folder is not what it must be, or there are no answers.
    """
    questions = _labelled(source)
    said = _answered(run, questions)
    return accuracies(said, questions), _letters(said, questions)


def predict(run: str | Path, source: str) -> dict[str, str]:
    """The letters of the answers of a run's final model, by question, as high1234.txt/2.

    Args:
        run: a finished run directory.
        source: as for `evaluate`; answers are not read.

    Raises:
        DataError: if the run or the folder is not what it must be.
    """
    questions = read_race(source)
    return _letters(_answered(run, questions), questions)


def accuracies(said: Sequence[int], questions: Sequence[Question]) -> dict[str, float]:
    """Right answers in a hundred: all, those of middle and those of high schools, where there are any.

    Example:
        >>> asked = [Question("", level, "", "", (), 2) for level in ("middle", "high", "high")]
        >>> accuracies([2, 2, 1], asked)
        {'accuracy': 66.67, 'middle': 100.0, 'high': 50.0}
    """
    right = {
        level: [a == q.answer for a, q in zip(said, questions, strict=True) if level in ("", q.level)]
        for level in ("", *LEVELS)
    }
    return {level or "accuracy": round(100 * sum(r) / len(r), 2) for level, r in right.items() if r}


def _answered(run: str | Path, questions: list[Question]) -> list[int]:
    settings = load(RaceSettings, Path(run) / SETTINGS)
    model, tokenizer = load_finished(run, HEAD)
    encoded = features(tokenizer, questions, settings.data.max_length, settings.data.max_option)
    warn_of_cuts(encoded)
    return _choices(finetuning.predict(model, encoded, tokenizer))


def _choices(logits: Sequence[np.ndarray]) -> list[int]:
    return [int(row.argmax()) for row in logits]


def _letters(said: Sequence[int], questions: Sequence[Question]) -> dict[str, str]:
    return {question.id: LETTERS[answer] for question, answer in zip(questions, said, strict=True)}


def _labelled(folder: str) -> list[Question]:
    questions = read_race(folder)
    unknown = [question.id for question in questions if question.answer is None]
    if unknown:
        raise DataError(f"{folder}: {len(unknown)} questions have no answer, such as {unknown[0]}")
    return questions
