"""Analyse the positions of a trained model: numbers and a figure."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from floater.errors import DataError, nearest
from floater.lab.cli.arguments import add_json, add_trust, count
from floater.lab.cli.output import check_writable, print_json
from floater.lab.cli.runs import start
from floater.lab.cli.streams import outliving_terminal
from floater.lab.study.plots import PLOTS

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    *kinds, last = PLOTS
    parser.add_argument("run", metavar="RUN", help="run directory, saved model, or a Hugging Face checkpoint")
    parser.add_argument("kind", metavar="KIND", type=_kind, help=f"{', '.join(kinds)} or {last}")
    parser.add_argument("--where", metavar="PLACE", help="place in the model, as in 'block 1 query'")
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
        help="figure, .png, .svg or .pdf (default: in the run's directory, plots/KIND.png)",
    )
    parser.add_argument("--numbers", metavar="FILE", help="also write the numbers to a NumPy archive, .npz")
    add_trust(parser)
    add_json(parser)


def _kind(text: str) -> str:
    """Read the name of an analysis."""
    if text not in PLOTS:
        raise argparse.ArgumentTypeError(f"unknown kind of plot '{text}'; {nearest(text, PLOTS)}")
    return text


@outliving_terminal()
def run(arguments: argparse.Namespace) -> None:
    import numpy as np

    from floater.lab.study import analyses
    from floater.lab.study.analyses.kinds import default_path
    from floater.lab.tasks.corpora.text import read_lines
    from floater.lab.tasks.registry import trust

    start()
    output = Path(arguments.output) if arguments.output else default_path(arguments.run, arguments.kind)
    if output.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise DataError(f"{output}: figures are .png, .svg or .pdf")
    folder = Path(arguments.run).resolve()
    if not arguments.output and folder.is_dir() and not output.resolve().is_relative_to(folder):
        raise DataError(f"{output} is a link out of the run; name another file with --output")
    check_writable(arguments.output)
    check_writable(arguments.numbers)
    if arguments.trust_code:
        trust(arguments.run)
    plot = analyses.draw(
        arguments.run,
        arguments.kind,
        analyses.Options(
            where=arguments.where,
            length=arguments.length,
            trained=arguments.trained,
            text=read_lines(arguments.text) if arguments.text else None,
        ),
    )
    output.parent.mkdir(exist_ok=True)
    analyses.save(plot.figure, output, title=plot.title, description=plot.text)
    logger.info("written: %s", output)
    if arguments.numbers:
        with open(arguments.numbers, "wb") as file:
            np.savez(file, allow_pickle=False, **{name: part.numpy() for name, part in plot.numbers.items()})
        logger.info("written: %s", arguments.numbers)
    if arguments.json:
        numbers = {name: part.tolist() for name, part in plot.numbers.items()}
        print_json({"run": arguments.run, "kind": arguments.kind, "numbers": numbers})
    else:
        print(plot.text)
