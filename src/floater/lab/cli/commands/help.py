"""Describe one command."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="COMMAND", help="the command", nargs="?")


def run(arguments: argparse.Namespace) -> None:
    """Print the list of commands; `floater help COMMAND` is read as `floater COMMAND --help`."""
    arguments.root.print_help()
