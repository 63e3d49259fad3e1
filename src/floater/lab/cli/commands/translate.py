"""Translate lines of text with a finished run."""

from __future__ import annotations

import argparse
import sys

from floater.errors import DataError
from floater.lab.cli.arguments import add_columns, add_reading, add_run, count, number
from floater.lab.cli.output import check_output, write_lines
from floater.lab.cli.runs import task_of_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "run directory, or a saved model")
    parser.add_argument(
        "--source", metavar="FILE", help="source lines, or a table with them (default: standard input)"
    )
    add_columns(parser)
    parser.add_argument("--output", metavar="FILE", help="translations (default: standard output)")
    parser.add_argument("--beam", metavar="N", type=count, help="beam size (default: the run's)")
    parser.add_argument(
        "--length-penalty",
        metavar="X",
        type=number,
        help="scores are divided by the length to this power (default: the run's)",
    )
    parser.add_argument(
        "--target-ratio",
        metavar="X",
        type=number,
        help="target length as a multiple of the source's tokens, for decoders that read one: ldpe, lrpe, "
        "noisy_length, pnat (default: the run's, or the model's prediction)",
    )
    parser.add_argument(
        "--batch-tokens",
        metavar="N",
        type=count,
        help="largest product of source tokens and beam size in a batch (default: the run's)",
    )
    parser.add_argument(
        "--device", metavar="NAME", help="cpu, cuda, cuda:1, mps, ... (default: a GPU if there is one)"
    )
    add_reading(parser)


def run(arguments: argparse.Namespace) -> None:
    from floater.lab.tasks.corpora.text import lines_of_file
    from floater.lab.tasks.translation import Translation
    from floater.lab.tasks.translation.data import read_sources, refuse_text
    from floater.lab.training.model import available_device

    task, folder = task_of_run(arguments)
    if not isinstance(task, Translation):
        raise DataError(
            f"{arguments.run} is a run of task '{task.name}'; only one of 'translation' translates"
        )
    check_output(arguments.output, arguments.source)
    search = {
        "beam": arguments.beam,
        "length_penalty": arguments.length_penalty,
        "max_tokens": arguments.batch_tokens,
        "target_ratio": arguments.target_ratio,
    }
    translator = task.translator(
        folder,
        arguments.reading,
        device=available_device(arguments.device),
        **{name: value for name, value in search.items() if value is not None},
    )
    settings = getattr(folder, "settings", None)  # a saved model has none
    if arguments.source:
        lines, fields = read_sources(arguments.source, settings and settings.data)
    elif sys.stdin is None:
        raise DataError("standard input is closed; name the text with --source FILE")
    else:
        refuse_text("standard input", settings and settings.data)
        lines, fields = [*lines_of_file(sys.stdin.buffer, "standard input")], None
    write_lines(translator(lines, fields), arguments.output)
