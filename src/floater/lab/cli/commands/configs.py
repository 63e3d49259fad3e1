"""List the configurations that come with the library."""

from __future__ import annotations

import argparse
import textwrap

from floater.errors import DataError
from floater.lab.cli import shipped
from floater.lab.cli.arguments import add_json
from floater.lab.cli.config_file import width
from floater.lab.cli.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "part", metavar="TEXT", help="show only names that contain this text", nargs="?", default=""
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    part = arguments.part.lower()
    configs = {name: text for name, text in shipped.shipped().items() if part in name.lower()}
    if not configs:
        raise DataError(f"no configuration has '{arguments.part}' in its name; floater configs lists them")
    if arguments.json:
        print_json(configs)
        return
    left = max(map(len, configs)) + 2
    for name, text in configs.items():
        print(f"{name:<{left}}{textwrap.shorten(text, max(20, width() - left), placeholder=' ...')}")
