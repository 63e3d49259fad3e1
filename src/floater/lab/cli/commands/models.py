"""List the position encodings, by their properties, or describe some."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from floater.errors import DataError
from floater.lab.cli.arguments import whole
from floater.lab.cli.config_file import width

if TYPE_CHECKING:
    from floater.encodings import Card
    from floater.lab.table import Format

FORMATS = ("text", "markdown", "csv", "json", "latex")
POINTS = ("none", "absolute", "relative", "both")
INJECTIONS = ("-", "APE", "MAM", "both")
STRUCTURES = ("sequence", "tree", "graph", "grid")
KERNELS = {
    "sdpa": ("SDPA",),
    "bias": ("SDPA, bias", "SDPA, bias; flex"),
    "flex": ("SDPA, bias; flex",),
    "own": ("own",),
}
PROPERTIES = {
    "learnable": "has parameters that learn",
    "recurring": "acts in every block",
    "unbound": "distinguishes positions past the training length",
}
EPILOG = """
examples:
  floater models --point relative --unbound --kernel flex
  floater models alibi rotary t5 --bibtex
  floater models --survey --format latex > table.tex
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", metavar="NAME", help="describe these: equation, options, limits", nargs="*")
    parser.add_argument("--format", choices=FORMATS, help="format of the list (default: text)")
    parser.add_argument(
        "--columns", metavar="A,B", help="columns of the list, of those that --format json shows"
    )
    view = parser.add_mutually_exclusive_group()
    view.add_argument(
        "--survey",
        action="store_true",
        help="Table 1 of Dufter et al. 2022: its cells, the measured ones, and why they differ",
    )
    view.add_argument(
        "--topics", action="store_true", help="its Table 2: papers by topic and reference point"
    )
    view.add_argument("--bibtex", action="store_true", help="print the BibTeX entries of the papers")
    for name, kinds, help in (
        ("point", POINTS, "with this reference point"),
        ("injection", INJECTIONS, "that change embeddings (APE) or attention (MAM)"),
        ("structure", STRUCTURES, "for data of this structure"),
    ):
        parser.add_argument(f"--{name}", choices=kinds, help=f"only those {help}")
    parser.add_argument(
        "--kernel", choices=KERNELS, help="only with this kernel: SDPA alone or with a bias, flex, own"
    )
    parser.add_argument("--year", metavar="Y[-Y]", type=_years, help="only of this year, or these")
    for name, help in PROPERTIES.items():
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=f"only what {help}")
    for name, size, help in (
        ("dim", 512, "width for the number of parameters"),
        ("heads", 8, "attention heads for it"),
        ("layers", 6, "blocks for it"),
        ("max-length", 512, "training length for it"),
    ):
        parser.add_argument(
            f"--{name}", metavar="N", type=whole, default=size, help=f"{help} (default: {size})"
        )


def run(arguments: argparse.Namespace) -> None:
    from floater.encodings import StackSpec, catalogue, options
    from floater.lab.cli import listing, survey

    _check(arguments)
    spec = StackSpec(arguments.dim, arguments.heads, arguments.layers, arguments.max_length)
    if arguments.topics:
        form: Format = arguments.format or "text"
        print(survey.topics().text(width()) if form == "text" else survey.topics().format(form))
        return
    names = list(dict.fromkeys(arguments.names)) or list(catalogue())
    for name in names:
        options(name)  # refuses an unknown name
    if arguments.survey and all(catalogue()[name].card.survey is None for name in names):
        raise DataError(f"the survey of Dufter et al. (2022) does not list {', '.join(names)}")
    described = [name for name in names if _is_described(catalogue()[name].card, arguments)]
    rows = [row for name in described if _is_measured(row := listing.columns(name, spec), arguments)]
    if not rows:
        raise DataError("no position encoding has all these properties; leave out one of them")
    names = [row["name"] for row in rows]
    shown = arguments.columns.split(",") if arguments.columns else None
    if arguments.bibtex:
        from floater.encodings.bibliography import bibtex, references

        papers = [reference for name in names for reference in catalogue()[name].card.references]
        if len(names) == len(catalogue()):  # and the papers that analyse encodings, which --topics cites
            papers += references().values()
        print(bibtex(papers))
    elif arguments.survey:
        form = arguments.format or "text"
        print(survey.table(rows, whole=form != "text").format(form))
        if form == "text":
            print(f"\n{survey.legend(names, width())}")
    elif arguments.format not in (None, "text"):
        page = {"markdown": listing.PAGE, "latex": listing.LATEX}.get(arguments.format)
        print(listing.table(rows, shown or page).format(arguments.format))
    elif arguments.names and not shown:
        print("\n\n".join(listing.entry(name, spec, width()) for name in names))
    else:
        table = listing.table(rows, shown or listing.TEXT)
        if not shown:
            fitting = table.fit(width())
            hidden = table.head[len(fitting.head) :]
            print(f"Parameters at width {spec.dim}, {spec.heads} heads, {spec.layers} blocks and training")
            print(f"length {spec.max_length}; `floater models NAME` describes one encoding.")
            if hidden:
                print(f"A wider terminal, --columns or --format also shows: {', '.join(hidden)}.")
            print()
            table = fitting
        print(table.text())


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that the chosen view does not use.

    Raises:
        DataError: if there is one.
    """
    filters = ("point", "injection", "structure", "kernel", "year", *PROPERTIES)
    unused = {
        "survey": ("columns",),
        "bibtex": ("columns", "format"),
        "topics": ("names", "columns", *filters),
    }
    for view, names in unused.items():
        for name in names if getattr(arguments, view) else ():
            if getattr(arguments, name) not in (None, []):
                raise DataError(f"--{view} takes no {'NAME' if name == 'names' else f'--{name}'}")


def _is_described(card: Card, arguments: argparse.Namespace) -> bool:
    """Return whether the card of an encoding has the requested properties."""
    first, last = arguments.year or ("0000", "9999")
    return (
        arguments.point in (None, card.point)
        and arguments.structure in (None, card.structure)
        and first <= card.year <= last
        and (card.survey is not None or not arguments.survey)
    )


def _is_measured(row: dict[str, Any], arguments: argparse.Namespace) -> bool:
    """Return whether the measured properties of an encoding are the requested ones."""
    return all(getattr(arguments, name) in (None, row[name]) for name in ("injection", *PROPERTIES)) and row[
        "kernel"
    ] in KERNELS.get(arguments.kernel, (row["kernel"],))


def _years(text: str) -> tuple[str, str]:
    """Read a year, or the first and the last."""
    match = re.fullmatch(r"(\d{4})(?:-(\d{4}))?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}' is not a year, as in 2021, or a range, as in 2019-2021")
    return match[1], match[2] or match[1]
