"""Fine-tuning on SQuAD, scores and predictions of a finished run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from accelerate import PartialState
from transformers import AutoModelForQuestionAnswering, PreTrainedModel, PreTrainedTokenizerFast

from floater.settings import load
from floater.tasks import finetuning
from floater.tasks.finetuning import Head, Parts, fine_tune, load_finished
from floater.tasks.finetuning.features import warn_of_cuts
from floater.tasks.run import SETTINGS, Say, trained
from floater.tasks.squad.data import Question, Questions, read_squad
from floater.tasks.squad.features import Windows, read_answers, windows, with_threshold
from floater.tasks.squad.score import Score, score
from floater.tasks.squad.settings import Answers, SquadSettings
from floater.tasks.text import DataError

HEAD = Head(AutoModelForQuestionAnswering)


def train(settings: SquadSettings) -> Path:
    """Fine-tune a checkpoint on SQuAD, or go on with a run that was stopped.

    See `floater.tasks.finetuning.fine_tune`.

    Args:
        settings: of the run.

    Returns:
        The run directory.

    Raises:
        DataError: if the data, the checkpoint or the run directory is not what it must be.
    """
    return trained(settings, _train)


def _train(settings: SquadSettings, run: Path, state: PartialState, say: Say) -> Path:
    learned = _labelled(settings.data.train)
    valid = _labelled(settings.data.valid).questions
    both = {question.id for question in learned.questions} & {question.id for question in valid}
    if both:
        raise DataError(
            f"{len(both):,} questions of {settings.data.valid} are in {settings.data.train}, too, such as "
            f"{min(both)}"
        )
    bad = set(learned.mismatched)
    questions = [question for question in learned.questions if question.id not in bad]
    if not questions:
        raise DataError(f"{settings.data.train}: no answer stands in its context where the file says")
    say(f"{len(questions):,} training questions, {len(valid):,} validation questions")
    if bad:
        named = ", ".join(learned.mismatched[:10]) + (", ..." if len(bad) > 10 else "")
        say(f"{len(bad):,} training answers do not stand in their context; questions left out: {named}")

    def prepare(tokenizer: PreTrainedTokenizerFast) -> Parts:
        encoded = _windows(settings, tokenizer, questions, labelled=True)
        read = _windows(settings, tokenizer, valid)
        say(f"{len(encoded.features):,} training windows, {len(read.features):,} validation windows")
        answered = {i for i, question in enumerate(questions) if question.start is not None}
        if lost := sorted(answered - encoded.whole):
            named = ", ".join(questions[i].id for i in lost[:10]) + (", ..." if len(lost) > 10 else "")
            say(f"{len(lost):,} training answers are whole in no window and are learned as none: {named}")

        def measure(model: PreTrainedModel) -> dict[str, float]:
            return _scored(model, tokenizer, read, valid, settings.answers)[0].metrics

        return Parts(encoded.features, [read.features], measure, "f1", greater=True)

    return fine_tune(settings, run, state, say, HEAD, prepare)


def evaluate(run: str | Path, source: str, threshold: float | None = None) -> tuple[Score, dict[str, str]]:
    """Score a run's final model on the questions of a file.

    Args:
        run: a finished run directory.
        source: a file of SQuAD, or a part of it (see `read_squad`).
        threshold: for no answer, instead of the run's.

    Returns:
        The score, and the answers by question.

    Raises:
        DataError: if the run or the file is not what it must be, or a question has no known answer.
    """
    return _answered(run, _labelled(source).questions, threshold)


def predict(run: str | Path, source: str) -> dict[str, str]:
    """Answers of a run's final model, by question, as the official evaluation takes them.

    Args:
        run: a finished run directory.
        source: as for `evaluate`; answers are not read.

    Raises:
        DataError: if the run or the file is not what it must be.
    """
    return _answered(run, read_squad(source).questions, None)[1]


def _answered(
    run: str | Path, questions: list[Question], threshold: float | None
) -> tuple[Score, dict[str, str]]:
    settings = load(SquadSettings, Path(run) / SETTINGS)
    model, tokenizer = load_finished(run, HEAD)
    answers = settings.answers
    if threshold is not None:
        answers = replace(answers, threshold=threshold)
    read = _windows(settings, tokenizer, questions)
    warn_of_cuts(read.features)
    return _scored(model, tokenizer, read, questions, answers)


def _scored(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    read: Windows,
    questions: Sequence[Question],
    answers: Answers,
) -> tuple[Score, dict[str, str]]:
    """The score of the answers that a model gives, and the answers."""
    logits = finetuning.predict(model, read.features, tokenizer)
    texts, no_answer = read_answers(read, logits, questions, answers)
    said = with_threshold(texts, no_answer, answers.threshold)
    found = score(questions, said)
    if answers.threshold is not None:
        best = score(questions, texts, no_answer)
        found = replace(found, best_exact=best.best_exact, best_f1=best.best_f1)
    return found, said


def _windows(
    settings: SquadSettings,
    tokenizer: PreTrainedTokenizerFast,
    questions: Sequence[Question],
    labelled: bool = False,
) -> Windows:
    data = settings.data
    return windows(
        tokenizer,
        questions,
        max_length=data.max_length,
        stride=data.stride,
        max_question=data.max_question,
        labelled=labelled,
    )


def _labelled(source: str) -> Questions:
    found = read_squad(source)
    if not found.labelled:
        raise DataError(f"{source}: there are questions without 'answers' and without 'is_impossible'")
    return found
