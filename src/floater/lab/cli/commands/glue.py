"""Print Table 3 of the FLOATER paper from finished glue runs."""

from __future__ import annotations

import argparse

from floater.lab.cli.arguments import add_json
from floater.lab.cli.output import print_json
from floater.lab.cli.runs import start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", help="run directories of several tasks and seeds", nargs="+")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    from floater.lab.study.glue_table import read_runs, table

    start()
    if arguments.json:
        print_json([result.record for result in read_runs(arguments.runs)])
    else:
        print(table(arguments.runs))
