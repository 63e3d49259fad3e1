"""Print the completion script of a shell."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell", choices=("bash", "zsh", "tcsh"), help='as in: eval "$(floater completion bash)"'
    )


def run(arguments: argparse.Namespace) -> None:
    import shtab

    print(shtab.complete(arguments.root, arguments.shell))
