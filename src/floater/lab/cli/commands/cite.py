"""Print what to cite for a run or a study as BibTeX: encodings, data sets, and software."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="directory of a run, of a study, or of a saved model")


def run(arguments: argparse.Namespace) -> None:
    from floater.lab.citations import cite

    print(cite(arguments.path))
