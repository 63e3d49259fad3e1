"""The settings of a SQuAD run: what a configuration file may say."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from floater.tasks.finetuning.settings import Checkpoint, Plug, Training
from floater.tasks.settings import check_numbers


@dataclass(frozen=True)
class Data:
    """The questions, and how a context is cut into windows.

    Attributes:
        train: a file of SQuAD 1.1 or 2.0; FILE[a:b] takes its articles from number a up to but without b.
        valid: the same, with other questions.
        max_length: tokens of a window: the question, a part of the context and special tokens.
        stride: tokens of the context that two neighbouring windows share.
        max_question: tokens of a question; longer ones lose their ends, and this is said.
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
    """How answers are read out of the model's logits.

    Attributes:
        max_tokens: of an answer.
        threshold: no answer is said where its score is above the best span's by more than this; null
            always answers, as SQuAD 1.1 wants.
    """

    max_tokens: int = 30
    threshold: float | None = None

    def __post_init__(self) -> None:
        check_numbers(self, max_tokens=1)
        if self.threshold is not None and math.isnan(self.threshold):
            raise ValueError("threshold is nan; it must be a number")


@dataclass(frozen=True)
class SquadSettings:
    """A SQuAD run.

    Attributes:
        run: directory for the configuration, tokenizer, log, checkpoints and final model.
        task: "squad".
        data: the questions.
        model: the checkpoint that training starts from.
        plug: FLOATER inside the checkpoint.
        training: optimisation.
        answers: how answers are read out of the model's logits.
    """

    run: str
    data: Data
    model: Checkpoint
    task: Literal["squad"] = "squad"
    plug: Plug = field(default_factory=Plug)
    training: Training = field(default_factory=Training)
    answers: Answers = field(default_factory=Answers)
