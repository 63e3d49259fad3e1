"""Types of arguments, and arguments that several commands share."""

from __future__ import annotations

import argparse
import math


def add_run(parser: argparse.ArgumentParser, help: str = "run directory") -> None:
    """Add the run that a command reads, and the consent to its code."""
    parser.add_argument("run", metavar="RUN", help=help)
    add_trust(parser)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the consent to code that a run or a configuration names."""
    parser.add_argument(
        "--trust-code", action="store_true", help="import modules that a run names: runs their code"
    )


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Add the names of the columns of a table."""
    parser.add_argument(
        "--columns",
        metavar="ROLE=NAME",
        type=_column,
        action="append",
        default=[],
        help="name of a column (default: the run's)",
    )


def _column(text: str) -> tuple[str, str]:
    role, equals, name = text.partition("=")
    if not role or not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form ROLE=NAME, as in text=review")
    return role, name


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the choice of JSON for the result."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add the rules for texts that are longer than those of the training."""
    parser.add_argument(
        "--reading",
        metavar="KEY=VALUE,...",
        help="how to read texts longer than in training: length=N (tokens declared), interpolate=true, "
        "group=W:G (distances above W in groups of G), temperature=true (default: the model's)",
    )


def count(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return int(text)


def whole(text: str) -> int:
    """Read a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None


def number(text: str) -> float:
    """Read a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"'{text}' is not a finite number")
    return value
