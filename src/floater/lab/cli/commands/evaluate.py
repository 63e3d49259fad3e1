"""Score a finished run on a test set: BLEU, chrF and tokenised BLEU of a translation run, perplexity of a
language model, accuracy of a tagger or a classifier, likelihood of events, exact match by length
on a generated task, the official metrics of GLUE, SQuAD and RACE. Options that only your own task has follow
RUN.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floater.errors import DataError
from floater.lab.cli.arguments import add_columns, add_json, add_reading, add_run, count, number, whole
from floater.lab.cli.output import check_writable, print_json, write_lines
from floater.lab.cli.runs import task_of_run
from floater.lab.cli.task_options import flag, parameters_of, parse_options

if TYPE_CHECKING:
    from floater.lab.tasks import Task

logger = logging.getLogger(__name__)
_SHARED = {"command", "parser", "root", "run", "json", "trust_code", "task_options", "columns"}
"""Arguments that are not passed to the task."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(task_options=[])  # words that only the task of the run knows
    add_run(parser, "run directory, or a saved translation model")
    parser.add_argument(
        "--source",
        metavar="FILE",
        help="text, table, CoNLL-U, events or documents",
    )
    add_columns(parser)
    parser.add_argument("--output", metavar="FILE", help="write the translations, tags or labels here")
    add_json(parser)
    add_reading(parser)
    translation = parser.add_argument_group("translation")
    translation.add_argument(
        "--reference",
        metavar="FILE",
        help="reference translation of a text, line by line",
    )
    translation.add_argument(
        "--language", metavar="CODE", help="language of the reference (default: of the run)"
    )
    translation.add_argument(
        "--bins",
        metavar="N,N,...",
        type=_edges,
        help="also score by source length in words and marks (characters of scripts without spaces), as in "
        "80,100,120; on a generated task by its lengths, for causal models by preceding tokens or events",
    )
    language_modeling = parser.add_argument_group("language modelling and events")
    language_modeling.add_argument(
        "--window",
        metavar="N",
        type=whole,
        help="tokens, or predicted events, that the model sees at once (default: the run's)",
    )
    language_modeling.add_argument(
        "--stride",
        metavar="N",
        type=whole,
        help="task language_modeling only: tokens that the window moves by (default: the run's; with "
        "--window, half of it, or all but one token if it is longer than the training rows)",
    )
    language_modeling.add_argument(
        "--memory",
        metavar="N",
        type=whole,
        help="task language_modeling only: tokens of segment memory (default: the run's)",
    )
    split = parser.add_argument_group("events, documents and classification")
    split.add_argument(
        "--part",
        metavar="NAME",
        choices=("train", "valid", "test"),
        help="part of the source, split as in the run: train, valid, test (default: all of it; without "
        "--source, the validation texts of a classification)",
    )
    images = parser.add_argument_group("image classification")
    images.add_argument(
        "--size", metavar="N", type=count, help="side of the images in pixels (default: the run's)"
    )
    images.add_argument(
        "--coordinates",
        metavar="RULE",
        choices=("scaled", "counted"),
        help="at another size: scaled to the training grid, or counted (default: scaled)",
    )
    squad = parser.add_argument_group("SQuAD")
    squad.add_argument(
        "--threshold",
        metavar="X",
        type=number,
        help="score difference above which no answer is predicted (default: the run's)",
    )


def _edges(text: str) -> tuple[int, ...]:
    """Read the first numbers of all bins but the first."""
    edges = tuple(int(part) if part.isdecimal() else 0 for part in text.split(","))
    if list(edges) != sorted(set(edges)) or edges[0] < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of increasing numbers, such as 80,100,120")
    return edges


def run(arguments: argparse.Namespace) -> None:
    if arguments.task_options and not Path(arguments.run).is_dir():  # there is no task that could know them
        arguments.parser.refuse(arguments.task_options[0])
    task, folder = task_of_run(arguments)
    check_writable(arguments.output, arguments.source, arguments.reference)
    options = _options(arguments, task)
    source = options.pop("source", None)
    trained_on = bool(source) and "part" not in options and _trained_on(task, Path(arguments.run), source)
    score = task.evaluate(folder, source, **options)
    if trained_on:
        note = f"{source}: the run was trained on examples of it"
        logger.warning("%s", note)
        score = replace(score, notes=[*score.notes, note])
    if arguments.output:
        write_lines(score.lines, arguments.output)
    if arguments.json:
        record = {"run": arguments.run, "task": task.name, "scores": score.scores, "bins": [*score.bins]}
        print_json(record | {"signatures": score.signatures, "notes": [*score.notes]})
    else:
        print(score)


def _trained_on(task: Task, run: Path, source: str) -> bool:
    """Return whether a source holds examples that the run was trained on, by the contents of their files."""
    from floater.lab.settings import peek, read
    from floater.lab.tasks.corpora.splits import with_split
    from floater.lab.training.contents import references
    from floater.lab.training.run import SETTINGS

    if not (run / SETTINGS).is_file():  # a saved model
        return False
    data = peek(read(run / SETTINGS), "data", {})
    named = [value for name in ("train", "train_source") if (value := data.get(name))]
    if task.reads_tables:
        named, source = with_split(named, "train"), with_split(source, "test")
    try:
        read_in_training, read_now = references(named), references(source)
    except DataError:  # files of the training that can no longer be read
        return False
    return any(one.overlaps(other) for one in read_now for other in read_in_training)


def _options(arguments: argparse.Namespace, task: Task) -> dict[str, Any]:
    """Return the arguments of a task's `evaluate`, without the run.

    Raises:
        DataError: if the task does not have an option, or needs one that is missing.
        SettingsError: if the annotation of a parameter does not allow a value.
    """
    from floater.lab.training.run import SETTINGS

    run, parser, parameters = arguments.run, arguments.parser, parameters_of(task.evaluate)
    shared = _SHARED | ({"output"} if task.output else set())
    options = {
        name: value for name, value in vars(arguments).items() if name not in shared and value is not None
    }
    new = {name: parameter for name, parameter in parameters.items() if name not in arguments}
    task_parser = type(parser)(prog=parser.prog, add_help=False, allow_abbrev=False)
    task_options, unknown = parse_options(task_parser, arguments.task_options, new)
    if unknown and not unknown[0].startswith("-"):
        parser.refuse(unknown[0])
    # a task that reads no source refuses one itself
    unknown += [flag(name) for name in options if name not in parameters and name != "source"]
    if unknown:
        raise DataError(
            f"{run} is a run of task '{task.name}', which takes no {unknown[0].partition('=')[0]}; "
            f"it takes {', '.join(map(flag, parameters))}"
        )
    options |= task_options
    for name, parameter in parameters.items():
        if name not in options and parameter.default is parameter.empty:
            is_run = (Path(run) / SETTINGS).is_file()
            which = f"is a run of task '{task.name}', which" if is_run else "holds no run; a saved model"
            raise DataError(f"{run} {which} needs {flag(name)}")
    return options
