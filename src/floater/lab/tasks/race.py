"""RACE: questions of English exams with four options each (Lai et al. 2017)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from transformers import AutoModelForMultipleChoice, PreTrainedTokenizerFast

from floater.errors import DataError
from floater.lab.tasks.corpora.race import LETTERS, LEVELS, Question, read_race
from floater.lab.tasks.finetuning.features import LABEL, Example, Features, encoded_texts, truncated
from floater.lab.tasks.finetuning.task import FineTuning, FineTuningSettings
from floater.lab.tasks.measurement import Measurement
from floater.lab.tasks.registry import register
from floater.lab.text.ragged import Records
from floater.lab.training.contents import Part
from floater.lab.training.settings import check_numbers


@dataclass(frozen=True)
class Data:
    """Source of the questions, and the maximum lengths of passage and options.

    Attributes:
        train: folder of RACE with the folders middle and high, such as RACE/train.
        valid: folder of the validation questions, such as RACE/dev.
        max_length: maximum number of tokens of passage, question and option; longer passages are truncated,
            and their number is logged.
        max_option: maximum number of tokens of question and option together; longer ones are truncated, and
            their number is logged.
    """

    train: str
    valid: str
    max_length: int = 512
    max_option: int = 128

    def __post_init__(self) -> None:
        check_numbers(self, max_option=1)
        check_numbers(self, max_length=self.max_option + 8)


@dataclass(frozen=True, kw_only=True)
class RaceSettings(FineTuningSettings):
    """A RACE run.

    Attributes:
        data: source of the questions.
    """

    task: Literal["race"] = "race"
    data: Data

    def files_read(self) -> dict[str, Any]:
        sides = {"data.train": self.data.train, "data.valid": self.data.valid}
        folders = {name: Part(Path(folder), ("*.txt", "*/*.txt")) for name, folder in sides.items()}
        return super().files_read() | folders


@register("race")
class Race(FineTuning):
    """Multiple choice, where each option with its question is a text after the passage."""

    Settings = RaceSettings
    stored = (Features,)
    Auto = AutoModelForMultipleChoice
    metric = "accuracy"
    validation_loss = None
    example = "question"

    def read_test(self, settings: Any, source: str, *, labelled: bool = True) -> list[Question]:
        questions = read_race(source)
        unknown = [question.id for question in questions if question.answer is None]
        if labelled and unknown:
            raise DataError(f"{source}: {len(unknown)} questions have no answer, such as {unknown[0]}")
        return questions

    def question(self, settings: RaceSettings, metric: str, test: Mapping[str, Any] | None) -> Any:
        return settings.data.valid

    measure = FineTuning.evaluate

    def encode(self, settings: Any, processor: Any, examples: Any, *, training: bool = False) -> Features:
        features = encode(processor, examples, settings.data.max_length, settings.data.max_option)
        features.source = None if training else examples
        return features

    def answer(self, settings: Any, features: Features, logits: Sequence[np.ndarray]) -> Measurement:
        chosen, questions = [int(row.argmax()) for row in logits], features.source
        letters = {question.id: LETTERS[i] for question, i in zip(questions, chosen, strict=True)}
        scores = accuracies(chosen, questions)
        report = "\n".join(f"{name} {value:.2f}" for name, value in scores.items())
        right = [[a == q.answer, 1] for a, q in zip(chosen, questions, strict=True)]
        return Measurement(
            np.array([max(map(len, ids)) for ids in features.rows.column("input_ids")]),
            {"accuracy": np.array(right, dtype=float)},
            scores=scores,
            report=report,
            lines=[json.dumps(letters)],
        )


def encode(
    tokenizer: PreTrainedTokenizerFast, questions: list[Question], max_length: int, max_option: int
) -> Features:
    """Encode each question once per option, after its passage, which is truncated to the remaining length.

    Args:
        tokenizer: tokenizer of the checkpoint.
        questions: questions; they have labels if the right answers of all are known.
        max_length: maximum number of tokens of passage, question and option together, special tokens
            included.
        max_option: maximum number of tokens of question and option together; longer ones are truncated.

    Returns:
        The encoded questions; `cut` is the number of truncated choices.
    """
    stated = [question.stated(i) for question in questions for i in range(len(LETTERS))]
    stated, cut = truncated(tokenizer, stated, max_option)
    articles = [question.article for question in questions for _ in LETTERS]
    encoded = encoded_texts(tokenizer, articles, stated, max_length, "only_first")

    labelled = all(question.answer is not None for question in questions)

    def rows() -> Iterator[Example]:
        nonlocal cut
        for question in questions:
            choices, were_cut = zip(*itertools.islice(encoded, len(LETTERS)), strict=True)
            cut += sum(were_cut)
            row: Example = {name: [choice[name] for choice in choices] for name in choices[0]}
            yield row | {LABEL: question.answer} if labelled else row

    encoded_rows = Records.of(rows())
    return Features(encoded_rows, None, cut, "data.max_length or data.max_option")


def accuracies(chosen: Sequence[int], questions: Sequence[Question]) -> dict[str, float]:
    """Return the percentage of right answers for all questions, and for those of middle and of high schools.

    Example:
        >>> asked = [Question("", level, "", "", (), 2) for level in ("middle", "high", "high")]
        >>> accuracies([2, 2, 1], asked)
        {'accuracy': 66.67, 'middle': 100.0, 'high': 50.0}
    """
    right = {
        level: [a == q.answer for a, q in zip(chosen, questions, strict=True) if level in ("", q.level)]
        for level in ("", *LEVELS)
    }
    return {level or "accuracy": round(100 * sum(r) / len(r), 2) for level, r in right.items() if r}
