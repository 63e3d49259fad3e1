"""Write the predictions of a finished classification, glue, squad or race run for data without labels."""

from __future__ import annotations

import argparse
from pathlib import Path

from floater.errors import DataError
from floater.lab.cli.arguments import add_columns, add_run
from floater.lab.cli.output import check_output, write_lines
from floater.lab.cli.runs import task_of_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--source", metavar="FILE", help="data in the layout of the run's task", required=True
    )
    add_columns(parser)
    parser.add_argument("--output", metavar="FILE", help="predictions (default: standard output)")


def run(arguments: argparse.Namespace) -> None:
    from floater.lab.training.run import SETTINGS

    task, folder = task_of_run(arguments)
    check_output(arguments.output, arguments.source)
    if task.predict is None:
        if not (Path(folder) / SETTINGS).is_file():
            raise DataError(f"{arguments.run} holds no run (no {SETTINGS})")
        other = "translate" if task.name == "translation" else "evaluate"
        raise DataError(
            f"{arguments.run} is a run of task '{task.name}', for which there is `floater {other}`"
        )
    write_lines(task.predict(folder, arguments.source), arguments.output)
