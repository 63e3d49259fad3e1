"""List the position encodings, or describe one."""

from __future__ import annotations

import argparse

from floater.lab.cli.arguments import whole
from floater.lab.cli.config_file import width

FORMATS = ("text", "markdown", "csv", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", help="describe this one: equation, options, limits", nargs="?"
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="format of the list (default: text)"
    )
    for size, default, help in (
        ("dim", 512, "width for the number of parameters"),
        ("heads", 8, "attention heads for it"),
        ("layers", 6, "blocks for it"),
    ):
        parser.add_argument(
            f"--{size}", metavar="N", type=whole, default=default, help=f"{help} (default: {default})"
        )


def run(arguments: argparse.Namespace) -> None:
    from floater.encodings import StackSpec, catalogue
    from floater.lab.cli.listing import entry, table

    spec = StackSpec(dim=arguments.dim, heads=arguments.heads, layers=arguments.layers, max_length=512)
    names = [arguments.name] if arguments.name else list(catalogue())
    if arguments.format != "text":
        print(table(names, spec, arguments.format))
    elif arguments.name:
        print(entry(arguments.name, spec, width()))
    else:
        listing = table(names, spec)  # before the heading: it may refuse the sizes
        print(f"Parameters at width {spec.dim}, {spec.heads} heads, {spec.layers} blocks and training length")
        print(f"{spec.max_length}; `floater models NAME` describes one encoding.\n")
        print(listing)
