"""Copy one of these configurations to a file of your own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from floater.errors import DataError
from floater.lab.cli import shipped
from floater.lab.cli.output import check_writable
from floater.lab.cli.streams import outliving_terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name in the list of floater configs, or its last part")
    parser.add_argument(
        "file", metavar="FILE", help="new file (default: NAME.yaml in the working directory)", nargs="?"
    )


@outliving_terminal()
def run(arguments: argparse.Namespace) -> None:
    origin = shipped.find(arguments.name)
    path = Path(arguments.file or origin.name)
    if path.is_dir():
        path /= origin.name
    if path.exists():
        raise DataError(f"{path} exists; name another file: floater init {arguments.name} FILE")
    check_writable(str(path))
    path.write_text(shipped.written(path, origin), encoding="utf-8")
    command = origin.read_text(encoding="utf-8").split(maxsplit=3)[2]  # "# floater study FILE"
    print(path)
    print(f"floater: edit it, then run: floater {command} {path}", file=sys.stderr)
