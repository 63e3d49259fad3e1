"""Analyse the positions of a trained model, or draw encodings: numbers and a figure."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floater.errors import DataError, nearest
from floater.lab.cli.arguments import add_json, add_trust, count
from floater.lab.cli.output import check_writable, print_json
from floater.lab.cli.runs import start
from floater.lab.cli.streams import outliving_terminal
from floater.lab.study.plots import FIGURES, PLOTS

if TYPE_CHECKING:
    from floater.lab.study.analyses import Plot

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    *kinds, last = PLOTS
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="run directory, saved model, or a Hugging Face checkpoint"
    )
    parser.add_argument("kind", metavar="KIND", nargs="?", type=_kind, help=f"{', '.join(kinds)} or {last}")
    parser.add_argument(
        "--encoding", metavar="NAME", nargs="+", help="draw these encodings side by side, untrained"
    )
    parser.add_argument(
        "--survey", metavar="NAME", type=_figure, help=f"a figure of Dufter et al. 2022: {', '.join(FIGURES)}"
    )
    parser.add_argument("--where", metavar="PLACE", help="location in the model, as in 'block 1 query'")
    parser.add_argument("--length", metavar="N", type=count, help="number of positions to show")
    parser.add_argument(
        "--trained",
        metavar="N",
        type=count,
        help="positions trained on (default: the model's training length)",
    )
    parser.add_argument("--text", metavar="FILE", help="lines that the model reads (probe, reordering)")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="figure, .png, .svg or .pdf (default: plots/KIND.png in the run's directory, or NAMES.png)",
    )
    parser.add_argument("--numbers", metavar="FILE", help="also write the numbers to a NumPy archive, .npz")
    add_trust(parser)
    add_json(parser)


def _kind(text: str) -> str:
    """Read the name of an analysis."""
    if text not in PLOTS:
        raise argparse.ArgumentTypeError(f"unknown kind of plot '{text}'; {nearest(text, PLOTS)}")
    return text


def _figure(text: str) -> str:
    """Read the name of a figure of the survey."""
    if text not in FIGURES:
        raise argparse.ArgumentTypeError(f"unknown figure '{text}'; {nearest(text, FIGURES)}")
    return text


@outliving_terminal()
def run(arguments: argparse.Namespace) -> None:
    import numpy as np

    from floater.lab.study import analyses

    start()
    subject = _subject(arguments)
    output = Path(arguments.output or _default_output(arguments))
    if output.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise DataError(f"{output}: figures are .png, .svg or .pdf")
    check_writable(arguments.output)
    check_writable(arguments.numbers)
    plot = _draw(arguments)
    if arguments.numbers and not plot.numbers:
        raise DataError("--numbers: this figure is a drawing without numbers")
    output.parent.mkdir(exist_ok=True)
    analyses.save(plot.figure, output, title=plot.title, description=plot.text)
    logger.info("written: %s", output)
    if arguments.numbers:
        with open(arguments.numbers, "wb") as file:
            np.savez(file, allow_pickle=False, **{name: part.numpy() for name, part in plot.numbers.items()})
        logger.info("written: %s", arguments.numbers)
    if arguments.json:
        numbers = {name: part.tolist() for name, part in plot.numbers.items()}
        print_json({**subject, "numbers": numbers})
    else:
        print(plot.text)


def _subject(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a command line asks to draw: a run and a kind, encodings, or a figure of the survey.

    Raises:
        DataError: if it asks for none of these or for several, or has an option that this does not take.
    """
    trained = {"run": arguments.run, "kind": arguments.kind}
    asked = [
        subject
        for subject in (trained, {"encoding": arguments.encoding}, {"survey": arguments.survey})
        if any(subject.values())
    ]
    if len(asked) != 1 or (asked == [trained] and not all(trained.values())):
        raise DataError("give a RUN and a KIND of plot, or --encoding NAME..., or --survey NAME")
    takes = {"run": ("where", "length", "trained", "text"), "encoding": ("length",), "survey": ()}
    first = next(iter(asked[0]))
    for name in takes["run"]:
        if getattr(arguments, name) is not None and name not in takes[first]:
            raise DataError(f"--{first} takes no --{name}")
    return asked[0]


def _default_output(arguments: argparse.Namespace) -> Path:
    """Return the path of the figure if the command line names none."""
    from floater.lab.study.analyses.kinds import default_path

    if not arguments.run:
        return Path(f"{'-'.join(arguments.encoding or [arguments.survey])}.png")
    output = default_path(arguments.run, arguments.kind)
    folder = Path(arguments.run).resolve()
    if folder.is_dir() and not output.resolve().is_relative_to(folder):
        raise DataError(f"{output} is a link out of the run; name another file with --output")
    return output


def _draw(arguments: argparse.Namespace) -> Plot:
    """Draw what a command line asks for."""
    from floater.lab.study import analyses
    from floater.lab.study.analyses.survey_figures import draw_survey
    from floater.lab.study.analyses.untrained import compare
    from floater.lab.tasks.corpora.text import read_lines
    from floater.lab.tasks.registry import trust

    if arguments.encoding:
        return compare(arguments.encoding, arguments.length)
    if arguments.survey:
        return draw_survey(arguments.survey)
    if arguments.trust_code:
        trust(arguments.run)
    text = read_lines(arguments.text) if arguments.text else None
    options = analyses.Options(arguments.where, arguments.length, arguments.trained, text)
    return analyses.draw(arguments.run, arguments.kind, options)
