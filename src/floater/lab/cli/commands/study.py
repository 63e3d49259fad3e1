"""Train a grid of position encodings x blocks x seeds, or resume it, and write its report."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from floater.lab.cli.arguments import add_json, add_trust
from floater.lab.cli.config_file import add_config, is_trusted, read_config
from floater.lab.cli.output import print_study
from floater.lab.cli.runs import start
from floater.lab.cli.streams import outliving_terminal

SUMMARY = """
most used settings:
  folder                    directory of the study: trials, tables, report
  task, settings            what all trials share, as for floater train
  models                    the variants by name: position and its options, ...
  seeds                     seeds of the trainings, as in [1, 2, 3]
  baseline, comparisons     what variants are compared with
  tests                     test sets by name
  budget.cores, .memory     what the trials may use together

examples:
  floater init study/generated_copy my.yaml     a configuration to begin with
  floater study my.yaml seeds=[1] budget.cores=4
  floater study my.yaml --report                report what has finished
  floater study --help settings                 every setting
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(
        parser,
        example="seeds=[1] or budget.cores=4",
        summary=SUMMARY,
        topic="settings",
        topics=lambda: ["settings"],
        settings=_settings,
    )
    parser.add_argument("--report", action="store_true", help="train nothing: only report finished trials")
    add_trust(parser)
    add_json(parser)


def _settings(topic: str) -> type[Any]:
    from floater.lab.study.settings import StudySettings

    return StudySettings


@outliving_terminal()
def run(arguments: argparse.Namespace) -> int:
    from floater.lab.settings import make
    from floater.lab.study.run import SETTINGS, study
    from floater.lab.study.settings import StudySettings
    from floater.lab.tasks.registry import import_modules, trust

    start()
    tree = read_config(arguments.config, "study", "run", "train")
    settings = make(StudySettings, tree, arguments.config, arguments.overrides)
    import_modules(settings.imports, arguments.config, trusted=is_trusted(arguments))
    if arguments.trust_code:
        for source in settings.checkpoints.values():
            trust(source)
    words = [arguments.config, *arguments.overrides]
    if not Path(arguments.config).is_file():  # a pipe, which is gone when the report is read
        words = [str(Path(settings.folder, SETTINGS))]
    command = shlex.join(words)
    results = study(settings, command, train=not arguments.report)
    return print_study(results, as_json=arguments.json)
