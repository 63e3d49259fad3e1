"""Extend a Hugging Face checkpoint to longer inputs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from floater.errors import DataError, first_line
from floater.lab.cli.arguments import count
from floater.lab.cli.runs import start
from floater.lab.cli.streams import outliving_terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="directory, or a name on the Hugging Face hub"
    )
    parser.add_argument(
        "length", metavar="LENGTH", type=count, help="new length in tokens, or side of images in pixels"
    )
    parser.add_argument(
        "--method",
        metavar="NAME",
        help="method of floater.extend (default: depends on the kind of positions)",
    )
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="option of the method; may be repeated",
    )
    parser.add_argument("--to", metavar="FOLDER", help="new directory for model and tokenizer", required=True)


@outliving_terminal()
def run(arguments: argparse.Namespace) -> None:
    import floater
    from floater.lab.tasks.finetuning.checkpoint import load_pretrained, load_tokenizer, locate
    from floater.lab.tasks.finetuning.companions import Companions
    from floater.lab.training.files import save_whole

    start()
    path, length, folder = arguments.checkpoint, arguments.length, Path(arguments.to)
    if folder.exists():
        raise DataError(f"{folder} exists already; choose a new directory")
    options = _options(arguments.option)
    model = load_pretrained(locate(path))
    try:
        extension = floater.extend(model, length, arguments.method, **options)
    except (RuntimeError, TypeError, ValueError) as error:  # RuntimeError: not enough memory for the table
        raise DataError(f"{path}: {first_line(error)}") from error
    parts: list[Any] = [model]
    is_image = extension.positions == "image"
    if not is_image:
        tokenizer = load_tokenizer(path)
        tokenizer.model_max_length = length
        parts.append(tokenizer)
    parts.append(Companions(locate(path), extension.old if is_image else None, length))
    folder.parent.mkdir(parents=True, exist_ok=True)
    save_whole(folder, *parts)
    print(extension)


def _options(texts: Sequence[str]) -> dict[str, Any]:
    """Return options by name, parsed from texts name=value with the value in YAML."""
    from floater.lab.settings.yaml_format import NotYamlError, parse

    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise DataError(f"option {text!r} is not of the form name=value")
        if name in options:
            raise DataError(f"option {name!r} is given twice")
        try:
            options[name] = parse(value)
        except NotYamlError as error:
            raise DataError(f"option {name!r} is {value!r}, which is not YAML: {error}") from error
    return options
