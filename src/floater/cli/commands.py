"""What the commands do with their arguments."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from floater.encodings import Frame, catalogue
from floater.listing import entry, table

if TYPE_CHECKING:
    from floater.study.results import Results


def train(arguments: argparse.Namespace) -> None:
    from floater.settings import load
    from floater.tasks.registry import of_config

    _quiet_transformers()
    task = of_config(arguments.config, arguments.overrides)
    task.train(load(task.Settings, arguments.config, arguments.overrides))


def translate(arguments: argparse.Namespace) -> None:
    from floater.tasks.registry import name_of_run
    from floater.tasks.run import read_by
    from floater.tasks.text import DataError, decode_lines, read_lines
    from floater.tasks.translation import load_run, translate
    from floater.tasks.translation.run import run_decoding

    _quiet_transformers()
    if (task := name_of_run(arguments.run)) != "translation":
        raise DataError(f"{arguments.run} is a run of task {task!r}; only one of 'translation' translates")
    _writable(arguments.output)
    model, tokenizer = load_run(arguments.run)
    read_by(model, arguments.reading)
    if arguments.source:
        lines = read_lines(arguments.source)
    else:
        lines = decode_lines(sys.stdin.buffer, "standard input")
    _write(translate(model, tokenizer, lines, run_decoding(arguments.run)), arguments.output)


def evaluate(arguments: argparse.Namespace) -> None:
    from floater.tasks.registry import find, name_of_run
    from floater.tasks.text import DataError

    _quiet_transformers()
    _writable(arguments.output)
    name = name_of_run(arguments.run)
    task = find(name, arguments.run)
    known = (
        *("source", "reference", "output", "language", "bins"),
        *("window", "stride", "memory", "part", "threshold", "reading"),
    )
    given = {option: value for option in known if (value := getattr(arguments, option)) is not None}
    options = {"source": True} | task.OPTIONS
    for option in known:
        if option in given and option not in options:
            raise DataError(f"{arguments.run} is a run of task '{name}', which takes no --{option}")
        if option not in given and options.get(option):
            raise DataError(f"{arguments.run} is a run of task '{name}', which needs --{option}")
    output = given.pop("output", None)
    said, lines = task.evaluate(arguments.run, given.pop("source", None), **given)
    if output and lines is not None:
        _write(lines, output)
    print(said)


def predict(arguments: argparse.Namespace) -> None:
    from floater.tasks.registry import find, name_of_run
    from floater.tasks.text import DataError

    _quiet_transformers()
    _writable(arguments.output)
    name = name_of_run(arguments.run)
    predict = getattr(find(name, arguments.run), "predict", None)
    if predict is None:
        other = "translate" if name == "translation" else "evaluate"
        raise DataError(f"{arguments.run} is a run of task '{name}', for which there is `floater {other}`")
    _write(predict(arguments.run, arguments.source), arguments.output)


def glue(arguments: argparse.Namespace) -> None:
    from floater.tasks.glue import table

    print(table(arguments.runs))


def models(arguments: argparse.Namespace) -> None:
    frame = Frame(dim=arguments.dim, heads=arguments.heads, layers=arguments.layers, max_length=512)
    names = [arguments.name] if arguments.name else list(catalogue())
    if arguments.name and arguments.format == "text":
        shown = entry(arguments.name, frame)
    else:
        shown = table(names, frame, arguments.format)
    if arguments.format == "text" and not arguments.name:
        print(
            f"Parameters at width {frame.dim}, {frame.heads} heads, {frame.layers} blocks and training length"
        )
        print(f"{frame.max_length}; `floater models NAME` tells of one model.\n")
    print(shown)


def plot(arguments: argparse.Namespace) -> None:
    import numpy as np

    from floater.study import analyses
    from floater.study.analyses.kinds import default_path
    from floater.tasks.text import DataError, read_lines

    _quiet_transformers()
    output = Path(arguments.output) if arguments.output else default_path(arguments.run, arguments.kind)
    if output.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise DataError(f"{output}: pictures are .png, .svg or .pdf")
    _writable(arguments.output)
    _writable(arguments.numbers)
    drawn = analyses.draw(
        arguments.run,
        arguments.kind,
        analyses.Options(
            where=arguments.where,
            length=arguments.length,
            trained=arguments.trained,
            text=read_lines(arguments.text) if arguments.text else None,
        ),
    )
    output.parent.mkdir(exist_ok=True)
    analyses.save(drawn.figure, output, title=drawn.title, description=drawn.said)
    print(drawn.said)
    print(f"written: {output}")
    if arguments.numbers:
        with open(arguments.numbers, "wb") as file:
            np.savez(file, allow_pickle=False, **{name: part.numpy() for name, part in drawn.numbers.items()})
        print(f"written: {arguments.numbers}")


def study(arguments: argparse.Namespace) -> int:
    from floater.study.run import from_config

    _quiet_transformers()
    results = from_config(arguments.config, arguments.overrides, train=not arguments.report)
    return _failed(results)


def demo(arguments: argparse.Namespace) -> int:
    from floater.study.demo import demo

    _quiet_transformers()
    folder = Path(arguments.run)
    results = demo(folder)
    print((folder / "table.md").read_text(encoding="utf-8"))
    return _failed(results)


def _failed(results: Results) -> int:
    """The exit code of a study."""
    return int(any(outcome.status == "failed" for outcome in results.outcomes))


def _writable(path: str | None) -> None:
    """Refuse an output file that could not be written, before the work is done."""
    if not path:
        return
    place = Path(path)
    if not place.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(place.parent))
    if place.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not place.exists():
        place.touch()
        place.unlink()
    elif not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def _write(lines: Sequence[str], path: str | None) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if path:
        Path(path).write_text(text, encoding="utf-8")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())


def _quiet_transformers() -> None:
    """No bars for reading and writing a model's files, which take a moment."""
    from transformers.utils import logging

    logging.disable_progress_bar()
