"""Extend a Hugging Face checkpoint to longer inputs, and measure the costs and gains."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from floater.errors import DataError, first_line
from floater.lab.cli.arguments import count, number
from floater.lab.cli.runs import start
from floater.lab.cli.streams import outliving_terminal

AUTO = "auto"


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
        help="method of floater.extend (default: depends on the kind of positions), or auto: that which the "
        "measurements of --prove choose",
    )
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="option of the method; may be repeated",
    )
    parser.add_argument(
        "--to", metavar="FOLDER", help="new directory for model and tokenizer; optional with --prove"
    )
    parser.add_argument(
        "--prove",
        metavar="TEXT",
        nargs="+",
        help="measure the extension on text files of at least LENGTH tokens, and write a certificate",
    )
    parser.add_argument(
        "--report",
        metavar="FOLDER",
        help="directory of the certificate; measurements that it has are not repeated (default: that of --to "
        "with '-certificate')",
    )
    parser.add_argument(
        "--minutes",
        metavar="N",
        type=number,
        help="start no measurement that would end later (default: no limit)",
    )


@outliving_terminal()
def run(arguments: argparse.Namespace) -> None:
    _check(arguments)
    start()
    options = _options(arguments.option)
    if arguments.prove:
        method, options = _prove(arguments, options)
        if method is None or not arguments.to:
            return
        arguments.method = method
    _save(arguments, options)


def _check(arguments: argparse.Namespace) -> None:
    """Refuse arguments that contradict each other, before anything is loaded."""
    if arguments.to and Path(arguments.to).exists():
        raise DataError(f"{arguments.to} exists already; choose a new directory")
    if not arguments.prove:
        for name in ("report", "minutes"):
            if getattr(arguments, name) is not None:
                raise DataError(f"--{name} is for --prove, which is not given")
        if arguments.method == AUTO:
            raise DataError("--method auto chooses by measurements; give texts with --prove")
        if not arguments.to:
            raise DataError("give a new directory with --to, or texts with --prove")
    elif not (arguments.to or arguments.report):
        raise DataError("give a directory for the certificate with --report, or one for the model with --to")
    if arguments.minutes is not None and arguments.minutes <= 0:
        raise DataError(f"--minutes is {arguments.minutes:g}; it must be more than 0")
    if arguments.method == AUTO and arguments.option:
        raise DataError("--option is for one method; with --method auto every method has its defaults")


def _prove(arguments: argparse.Namespace, options: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Write a certificate; return the method to extend with, and its options."""
    from floater.lab.certificate import Method, certify, choose, methods, read_texts, subject, write_page
    from floater.lab.tasks.finetuning.checkpoint import load_tokenizer, locate

    folder = Path(arguments.report or f"{arguments.to}-certificate")
    path, length = locate(arguments.checkpoint), arguments.length
    try:
        asked = arguments.method not in (None, AUTO)
        model = subject(path, length, Method(arguments.method, options) if asked else None)
        measured = methods(model, arguments.method or model.default, options)
    except (RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"{arguments.checkpoint}: {first_line(error)}") from error
    tokenizer = load_tokenizer(arguments.checkpoint, padding=False)
    texts = read_texts(arguments.prove, tokenizer, length)
    folder.mkdir(parents=True, exist_ok=True)
    record = certify(model, tokenizer, measured, texts, folder / "certificate.json", arguments.minutes)
    print(*write_page(record, measured, arguments.method or "", folder, _command(arguments)), sep="\n")
    print(f"certificate: {folder}")
    if arguments.method != AUTO:
        return measured[0].name, options
    best, _ = choose(record, measured)
    return (None, {}) if best is None else (best.name, dict(best.options))


def _command(arguments: argparse.Namespace) -> str:
    """Return the command that continues or repeats the measurements."""
    words = ["floater", "extend", arguments.checkpoint, str(arguments.length)]
    words += ["--method", arguments.method] if arguments.method else []
    words += [word for option in arguments.option for word in ("--option", option)]
    report = arguments.report or f"{arguments.to}-certificate"
    return shlex.join([*words, "--prove", *arguments.prove, "--report", report])


def _save(arguments: argparse.Namespace, options: dict[str, Any]) -> None:
    """Extend the checkpoint and write it with its tokenizer and companions."""
    import floater
    from floater.lab.tasks.finetuning.checkpoint import load_pretrained, load_tokenizer, locate
    from floater.lab.tasks.finetuning.companions import Companions
    from floater.lab.training.files import save_whole

    path, length, folder = arguments.checkpoint, arguments.length, Path(arguments.to)
    model = load_pretrained(locate(path))
    try:
        extension = floater.extend(model, length, arguments.method, **options)
    except (RuntimeError, TypeError, ValueError) as error:  # RuntimeError: not enough memory for the table
        raise DataError(f"{path}: {first_line(error)}") from error
    parts: list[Any] = [model]
    is_image = extension.positions == "image"
    if not is_image:
        tokenizer = load_tokenizer(path, padding=False)
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
