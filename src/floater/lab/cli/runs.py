"""Functions that commands reading a run share."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from floater.errors import DataError, no_directory

if TYPE_CHECKING:
    from floater.lab.tasks import Task
    from floater.lab.training.run import RunPath


def start() -> None:
    """Show the messages of the library, but no progress bars for the brief loading of a model's files."""
    from transformers.utils import logging

    from floater.lab.training.launchers import settle_processes
    from floater.lab.training.messages import show_messages

    show_messages()
    settle_processes(os.environ)
    logging.disable_progress_bar()


def task_of_run(arguments: argparse.Namespace) -> tuple[Task, RunPath]:
    """Return the task of the run of a command line, and its directory.

    Raises:
        DataError: if there is no directory; the message on a file in its place has a hint. Or if it is a
            saved model in a run of another task than translation, or columns are named for a saved model,
            which has no settings.
        SettingsError: if the run's configuration cannot be read, or names modules without consent to them.
    """
    from floater.lab.settings import SettingsError, peek, read
    from floater.lab.tasks.registry import DEFAULT, from_run, trust
    from floater.lab.training.run import MODEL, SETTINGS

    start()
    run = arguments.run
    if Path(run).is_file():
        raise DataError(f"{run} is a file; the run's directory comes first, and the text with --source {run}")
    if not Path(run).is_dir():
        raise no_directory(run)
    parent = Path(run).parent
    if Path(run).name == MODEL and not (Path(run) / SETTINGS).is_file() and (parent / SETTINGS).is_file():
        with suppress(SettingsError):  # a file of something else
            if peek(read(parent / SETTINGS), "task", DEFAULT) != DEFAULT:
                raise DataError(f"{run} holds no run (no {SETTINGS}); name the run, {parent}")
    if arguments.trust_code:
        trust(run)
    columns = [
        f"data.columns.{role}={json.dumps(name.split(',') if role == 'values' else name)}"
        for role, name in arguments.columns
    ]
    return from_run(run, columns)
