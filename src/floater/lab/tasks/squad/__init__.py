"""SQuAD 1.1 and 2.0: extraction of spans that answer questions (Rajpurkar et al. 2016, 2018)."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from transformers import AutoModelForQuestionAnswering

from floater.errors import DataError
from floater.lab.tasks.corpora.squad import Question, Questions, read_squad
from floater.lab.tasks.finetuning.features import Features
from floater.lab.tasks.finetuning.task import FineTuning, FineTuningSettings
from floater.lab.tasks.measurement import Measurement
from floater.lab.tasks.prepared import Splits
from floater.lab.tasks.registry import register
from floater.lab.tasks.squad.features import Windows, read_answers, windows, with_threshold
from floater.lab.tasks.squad.score import best_scores, score
from floater.lab.text.languages import lacks_spaces
from floater.lab.training.run import RunPath
from floater.lab.training.settings import check_numbers

logger = logging.getLogger(__name__)
_SAMPLE = 1000
"""Number of questions in whose contexts spaces are looked for."""


@dataclass(frozen=True)
class Data:
    """Source of the questions, and division of a context into windows.

    Attributes:
        train: file of SQuAD 1.1 or 2.0; FILE[a:b] takes its articles from number a up to but excluding b.
        valid: file of the validation questions, in the same form.
        max_length: maximum number of tokens of a window: the question, a part of the context and special
            tokens.
        stride: number of tokens of the context that two consecutive windows share.
        max_question: maximum number of tokens of a question; longer ones are truncated, and their number is
            logged.
    """

    train: str
    valid: str
    max_length: int = 384
    stride: int = 128
    max_question: int = 64

    def __post_init__(self) -> None:
        check_numbers(self, max_length=8, stride=0, max_question=1)


@dataclass(frozen=True)
class Answers:
    """Settings of the extraction of answers from the model's logits.

    Attributes:
        max_tokens: maximum number of tokens of an answer.
        threshold: difference between the scores of no answer and of the best span above which no answer is
            given; null always answers, as SQuAD 1.1 requires.
    """

    max_tokens: int = 30
    threshold: float | None = None

    def __post_init__(self) -> None:
        check_numbers(self, max_tokens=1)
        if self.threshold is not None and math.isnan(self.threshold):
            raise ValueError("threshold is nan; it must be a number")


@dataclass(frozen=True, kw_only=True)
class SquadSettings(FineTuningSettings):
    """A SQuAD run.

    Attributes:
        data: source of the questions.
        answers: extraction of answers from the model's logits.
    """

    task: Literal["squad"] = "squad"
    data: Data
    answers: Answers = field(default_factory=Answers)


@register("squad")
class Squad(FineTuning):
    """Extractive question answering over windows of a context."""

    Settings = SquadSettings
    Auto = AutoModelForQuestionAnswering
    metric = "f1"
    validation_loss = None

    def read(self, settings: SquadSettings) -> Splits:
        data = settings.data
        learned, valid = _labelled(data.train), _labelled(data.valid).questions
        both = {question.id for question in learned.questions} & {question.id for question in valid}
        if both:
            raise DataError(
                f"{len(both):,} questions of {data.valid} are in {data.train}, too, such as {min(both)}"
            )
        bad = set(learned.mismatched)
        questions = [question for question in learned.questions if question.id not in bad]
        if not questions:
            raise DataError(f"{data.train}: no answer stands in its context where the file says")
        if bad:
            logger.info(
                "%s training answers do not stand in their context; questions excluded: %s",
                f"{len(bad):,}",
                _first(learned.mismatched),
            )
        return Splits(questions, valid)

    def read_test(self, settings: Any, source: str, *, labelled: bool = True) -> list[Question]:
        return (_labelled(source) if labelled else read_squad(source)).questions

    def lengths(self, settings: Any) -> str:
        return "words of the context"

    def question(self, settings: SquadSettings, metric: str, test: Mapping[str, Any] | None) -> Any:
        return settings.data.valid

    def encode(self, settings: Any, processor: Any, examples: Any, *, training: bool = False) -> Windows:
        data = settings.data
        encoded = windows(
            processor,
            examples,
            max_length=data.max_length,
            stride=data.stride,
            max_question=data.max_question,
            labelled=training,
        )
        if training:
            answered = {i for i, question in enumerate(examples) if question.start is not None}
            if lost := sorted(answered - encoded.whole):
                logger.info(
                    "%s training answers are whole in no window and are learned as none: %s",
                    f"{len(lost):,}",
                    _first([examples[i].id for i in lost]),
                )
        return encoded

    def answer(self, settings: Any, features: Features, logits: Sequence[np.ndarray]) -> Measurement:
        assert isinstance(features, Windows)
        questions, threshold = features.source, settings.answers.threshold
        texts, no_answer = read_answers(features, logits, questions, settings.answers.max_tokens)
        answers = with_threshold(texts, no_answer, threshold)
        measurement = score(questions, answers)
        if threshold is not None:
            best = best_scores(questions, texts, no_answer)
            measurement = replace(
                measurement, scores=measurement.scores | best.scores, report=f"{measurement}\n{best}"
            )
        return replace(measurement, lines=[json.dumps(answers, ensure_ascii=False)])

    def evaluate(self, run: RunPath, source: str, *, threshold: float | None = None) -> Measurement:
        """Score the final model of a run on the questions of a file.

        Args:
            run: directory of a finished run.
            source: file of SQuAD, or a part of it (see `read_squad`).
            threshold: threshold for no answer, in place of the run's.

        Raises:
            DataError: if the run or the file is not valid, or a question has no known answer.
        """
        settings = self.settings_of(run)
        if threshold is not None:
            settings = replace(settings, answers=replace(settings.answers, threshold=threshold))
        return self.answers(run, settings, source, labelled=True)

    def measure(self, run: RunPath, source: str) -> Measurement:
        """Score the final model of a run question by question, for a study; see `evaluate`."""
        return self.evaluate(run, source)


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


def _labelled(source: str) -> Questions:
    questions = read_squad(source)
    if not questions.labelled:
        raise DataError(f"{source}: there are questions without 'answers' and without 'is_impossible'")
    if lacks_spaces({question.context for question in questions.questions[:_SAMPLE]}):
        logger.warning(
            "%s: the texts have no spaces between words, so that F1 takes whole answers for words, as the "
            "official evaluation does; exact match does not depend on spaces",
            source,
        )
    return questions
