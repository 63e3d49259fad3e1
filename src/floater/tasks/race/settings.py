"""The settings of a RACE run: what a configuration file may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from floater.tasks.finetuning.settings import Checkpoint, Plug, Training
from floater.tasks.settings import check_numbers


@dataclass(frozen=True)
class Data:
    """The questions, and how long passage and options may be.

    Attributes:
        train: a folder of RACE with the folders middle and high, as RACE/train.
        valid: the same, as RACE/dev.
        max_length: tokens of passage, question and option; longer passages lose their ends, and this is said.
        max_option: tokens of question and option together; longer ones lose their ends, and this is
            said.
    """

    train: str
    valid: str
    max_length: int = 512
    max_option: int = 128

    def __post_init__(self) -> None:
        check_numbers(self, max_option=1)
        check_numbers(self, max_length=self.max_option + 8)


@dataclass(frozen=True)
class RaceSettings:
    """A RACE run.

    Attributes:
        run: directory for the configuration, tokenizer, log, checkpoints and final model.
        task: "race".
        data: the questions.
        model: the checkpoint that training starts from.
        plug: FLOATER inside the checkpoint.
        training: optimisation.
    """

    run: str
    data: Data
    model: Checkpoint
    task: Literal["race"] = "race"
    plug: Plug = field(default_factory=Plug)
    training: Training = field(default_factory=Training)
