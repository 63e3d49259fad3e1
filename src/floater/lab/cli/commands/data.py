"""Download and prepare a data set of the papers, or list them."""

from __future__ import annotations

import argparse

from floater.lab.cli.arguments import count
from floater.lab.cli.runs import start
from floater.lab.cli.streams import outliving_terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="data set (default: list them)", nargs="?")
    parser.add_argument(
        "--to", metavar="FOLDER", help="parent of the new directory NAME (default: data)", default="data"
    )
    parser.add_argument(
        "--processes", metavar="N", type=count, default=1, help="processes for tokenisation (default: 1)"
    )


@outliving_terminal()
def run(arguments: argparse.Namespace) -> None:
    from floater.lab.datasets import listing, prepare

    start()
    if arguments.name is None:
        print(listing())
    else:
        print(prepare(arguments.name, arguments.to, processes=arguments.processes))
