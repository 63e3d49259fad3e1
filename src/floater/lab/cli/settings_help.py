"""Help on the settings of a configuration: a summary of one screen, or a list of all settings."""

from __future__ import annotations

import argparse
import shutil
from importlib.metadata import entry_points
from typing import Any, ClassVar

from floater.errors import nearest

TASKS = (
    *("translation", "language_modeling", "tagging", "masked_lm", "causal_lm", "glue", "squad"),
    *("race", "events", "documents", "generated", "image_classification"),
)
"""Names in `floater.lab.tasks.registry`, which can be imported only with the extra "lab"."""
_NARROW, _WIDE = 60, 120


def width() -> int:
    """Return the number of columns of the terminal, within readable limits."""
    return max(_NARROW, min(_WIDE, shutil.get_terminal_size().columns))


class _Help(argparse.Action):
    """Print help on a command, or all settings of a topic."""

    text: ClassVar[str]

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, topic: Any, option: str | None = None
    ) -> None:
        if topic is None:
            print(f"{parser.format_help()}\n{self.text.strip()}")
        else:
            topics = self.topics()
            if topic not in topics:
                parser.error(f"no help on '{topic}'; {nearest(topic, topics)}")
            from floater.lab.settings import describe

            print(describe(self.settings(topic), width()))
        parser.exit()

    def topics(self) -> list[str]:
        raise NotImplementedError

    def settings(self, topic: str) -> type[Any]:
        """Return the settings class of a topic."""
        raise NotImplementedError


class TrainHelp(_Help):
    """Help on `floater train`; with the name of a task, on all of its settings."""

    text = """
most used settings:
  run                       directory of the run; one that is there is resumed
  task                      translation, language_modeling, ...
  data.*                    files and how they are read; see the task's settings
  model.preset              sizes: tiny, small, transformer-base, ...
  model.position            position encoding; floater models lists them
  model.position_options    its options, as in model.position_options.delta=0.1
  training.learning_rate    at its peak; also .warmup_steps, .lr_scheduler_type
  training.num_train_epochs or training.max_steps
  training.seed             of weights, dropout and the order of batches

examples:
  floater init translation/multi30k my.yaml     a configuration to begin with
  floater train my.yaml model.position=rotary run=runs/rotary
  floater train --help translation              every setting of the task
"""

    def topics(self) -> list[str]:
        return [*TASKS, *(found.name for found in entry_points(group="floater.lab.tasks"))]

    def settings(self, topic: str) -> type[Any]:
        from floater.lab.tasks.registry import task

        return task(topic).Settings


class StudyHelp(_Help):
    """Help on `floater study`; with the word "settings", on all of them."""

    text = """
most used settings:
  folder                    directory of the study: trials, tables, report
  task, settings            what all trials share, as for floater train
  models                    the variants by name: position and its options, ...
  seeds                     of the trainings, as in [1, 2, 3]
  baseline, comparisons     what variants are compared with
  tests                     test sets by name
  budget.cores, .memory     what the trials may use together

examples:
  floater init study/generated_copy my.yaml     a configuration to begin with
  floater study my.yaml seeds=[1] budget.cores=4
  floater study my.yaml --report                report what has finished
  floater study --help settings                 every setting
"""

    def topics(self) -> list[str]:
        return ["settings"]

    def settings(self, topic: str) -> type[Any]:
        from floater.lab.study.settings import StudySettings

        return StudySettings
