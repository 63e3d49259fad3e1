"""Train four position encodings on built-in text and compare them by length: 11 minutes on two cores."""

from __future__ import annotations

import argparse
import textwrap
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
    from floater.lab.study.demo import NOTE, demo

    start()
    results = demo(Path(arguments.run))
    code = print_study(results, as_json=arguments.json)
    if not arguments.json and not code:
        print("\n" + textwrap.fill(NOTE.replace("`", ""), break_on_hyphens=False))
    return code
