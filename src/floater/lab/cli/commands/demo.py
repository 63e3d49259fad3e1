"""Train three position encodings on the built-in corpus and compare them by length."""

from __future__ import annotations

import argparse
from pathlib import Path

from floater.lab.cli.arguments import add_json
from floater.lab.cli.output import print_study
from floater.lab.cli.runs import start
from floater.lab.cli.streams import outliving_terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run",
        metavar="DIR",
        default="runs/demo",
        help="directory for runs, tables and report (default: runs/demo)",
    )
    add_json(parser)


@outliving_terminal()
def run(arguments: argparse.Namespace) -> int:
    from floater.lab.study.demo import demo

    start()
    return print_study(demo(Path(arguments.run)), as_json=arguments.json)
