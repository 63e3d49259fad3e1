"""Functions of the commands: results go to standard output, messages to standard error."""

from __future__ import annotations

import argparse
import errno
import gc
import inspect
import json
import logging
import math
import os
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floater.errors import DataError, first_line, no_directory
from floater.lab.cli import configs as shipped_configs
from floater.lab.cli.settings_help import width
from floater.lab.streams import ClosedOutput

if TYPE_CHECKING:
    from floater.lab.study.results import Results

logger = logging.getLogger(__name__)


def train(arguments: argparse.Namespace) -> None:
    from torch import distributed

    from floater.lab.tasks.registry import of_config
    from floater.lab.training.run import RESULT

    _start()
    tree = _read_config(arguments.config, "train", "folder", "study")
    trusted = _trusted(arguments)
    task, settings = of_config(tree, arguments.config, arguments.overrides, trusted=trusted)
    accepted = {"accept_changed_data": arguments.accept_changed_data}
    if arguments.epochs or arguments.steps:
        from floater.lab.training.lengthen import lengthen

        settings = lengthen(settings, epochs=arguments.epochs, steps=arguments.steps, **accepted)
    run = task.train(settings, **accepted)
    if distributed.is_available() and distributed.is_initialized():
        first = distributed.get_rank() == 0
        # A model that outlives its process group destroys it while it holds the GIL, and waits forever if a
        # thread of the group waits for the GIL. The threads of a group left open can abort the exit.
        gc.collect()
        distributed.destroy_process_group()
        if not first:
            return
    result = json.loads((run / RESULT).read_text(encoding="utf-8"))
    _print({"run": str(run)} | result, arguments.json)


def translate(arguments: argparse.Namespace) -> None:
    from floater.lab.tasks.corpora.text import decode_lines, read_lines
    from floater.lab.tasks.translation import Translation

    task, run = _task_of(arguments)
    if not isinstance(task, Translation):
        raise DataError(
            f"{arguments.run} is a run of task '{task.name}'; only one of 'translation' translates"
        )
    _has_output(arguments.output)
    _writable(arguments.output, arguments.source)
    search = {
        "beam": arguments.beam,
        "length_penalty": arguments.length_penalty,
        "max_tokens": arguments.batch_tokens,
    }
    translator = task.translator(
        run,
        arguments.reading,
        device=_device(arguments.device),
        **{name: value for name, value in search.items() if value is not None},
    )
    if arguments.source:
        lines = read_lines(arguments.source)
    elif sys.stdin is None:
        raise DataError("standard input is closed; name the text with --source FILE")
    else:
        lines = decode_lines(sys.stdin.buffer, "standard input")
    _write(translator(lines), arguments.output)


def evaluate(arguments: argparse.Namespace) -> None:
    task, run = _task_of(arguments)
    _writable(arguments.output, arguments.source, arguments.reference)
    own = {"command", "run", "json", "trust_code"} | ({"output"} if task.output else set())
    given = {name: value for name, value in vars(arguments).items() if name not in own and value is not None}
    # the options that a task takes are the parameters of its `evaluate`
    taken = dict(list(inspect.signature(task.evaluate).parameters.items())[1:])
    for name in given:
        if name not in taken:
            real = (each for each, parameter in taken.items() if parameter.annotation != "None")
            offered = ", ".join(f"--{each}" for each in real if each in arguments)
            raise DataError(
                f"{arguments.run} is a run of task '{task.name}', which takes no --{name}; it takes {offered}"
            )
    for name, parameter in taken.items():
        if name not in given and parameter.default is parameter.empty:
            holds = (Path(arguments.run) / "config.yaml").is_file()
            what = f"is a run of task '{task.name}', which" if holds else "holds no run; a saved model"
            raise DataError(f"{arguments.run} {what} needs --{name}")
    given.setdefault("source", None)
    found = task.evaluate(run, given.pop("source"), **given)
    if arguments.output:
        _write(found.lines, arguments.output)
    if arguments.json:
        record = {"run": arguments.run, "task": task.name, "scores": found.scores, "bins": [*found.bins]}
        _print(record | {"signatures": found.signatures, "notes": [*found.notes]}, True)
    else:
        print(found)


def predict(arguments: argparse.Namespace) -> None:
    task, run = _task_of(arguments)
    _has_output(arguments.output)
    _writable(arguments.output, arguments.source)
    if task.predict is None:
        other = "translate" if task.name == "translation" else "evaluate"
        raise DataError(
            f"{arguments.run} is a run of task '{task.name}', for which there is `floater {other}`"
        )
    _write(task.predict(run, arguments.source), arguments.output)


def extend(arguments: argparse.Namespace) -> None:
    import floater
    from floater.lab.tasks.finetuning.checkpoint import load_pretrained, load_tokenizer, locate
    from floater.lab.tasks.finetuning.companions import Companions
    from floater.lab.training.files import save_whole

    _start()
    path, length, to = arguments.checkpoint, arguments.length, Path(arguments.to)
    if to.exists():
        raise DataError(f"{to} exists already; choose a new directory")
    options = _options(arguments.option)
    model = load_pretrained(locate(path))
    try:
        done = floater.extend(model, length, arguments.method, **options)
    except (RuntimeError, TypeError, ValueError) as error:  # RuntimeError: not enough memory for the table
        raise DataError(f"{path}: {first_line(error)}") from error
    parts: list[Any] = [model]
    if done.positions != "image":
        tokenizer = load_tokenizer(path)
        tokenizer.model_max_length = length
        parts.append(tokenizer)
    parts.append(Companions(locate(path), done.old if done.positions == "image" else None, length))
    to.parent.mkdir(parents=True, exist_ok=True)
    save_whole(to, *parts)
    print(done)


def glue(arguments: argparse.Namespace) -> None:
    from floater.lab.study.glue_table import read_runs, table

    _start()
    if arguments.json:
        _print([found.record for found in read_runs(arguments.runs)], True)
    else:
        print(table(arguments.runs))


def models(arguments: argparse.Namespace) -> None:
    from floater.encodings import StackSpec, catalogue
    from floater.lab.listing import entry, table

    spec = StackSpec(dim=arguments.dim, heads=arguments.heads, layers=arguments.layers, max_length=512)
    names = [arguments.name] if arguments.name else list(catalogue())
    if arguments.name and arguments.format == "text":
        shown = entry(arguments.name, spec, width())
    else:
        shown = table(names, spec, arguments.format)
    if arguments.format == "text" and not arguments.name:
        print(f"Parameters at width {spec.dim}, {spec.heads} heads, {spec.layers} blocks and training length")
        print(f"{spec.max_length}; `floater models NAME` describes one encoding.\n")
    print(shown)


def plot(arguments: argparse.Namespace) -> None:
    import numpy as np

    from floater.lab.study import analyses
    from floater.lab.study.analyses.kinds import default_path
    from floater.lab.tasks.corpora.text import read_lines
    from floater.lab.tasks.registry import trust

    _start()
    output = Path(arguments.output) if arguments.output else default_path(arguments.run, arguments.kind)
    if output.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise DataError(f"{output}: figures are .png, .svg or .pdf")
    if not arguments.output and Path(arguments.run).is_dir():
        place = Path(arguments.run).resolve()
        if not output.resolve().is_relative_to(place):
            raise DataError(f"{output} is a link out of the run; name another file with --output")
    _writable(arguments.output)
    _writable(arguments.numbers)
    if arguments.trust_code:
        trust(arguments.run)
    found = analyses.draw(
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
    analyses.save(found.figure, output, title=found.title, description=found.text)
    logger.info("written: %s", output)
    if arguments.numbers:
        with open(arguments.numbers, "wb") as file:
            np.savez(file, allow_pickle=False, **{name: part.numpy() for name, part in found.numbers.items()})
        logger.info("written: %s", arguments.numbers)
    if arguments.json:
        numbers = {name: part.tolist() for name, part in found.numbers.items()}
        _print({"run": arguments.run, "kind": arguments.kind, "numbers": numbers}, True)
    else:
        print(found.text)


def study(arguments: argparse.Namespace) -> int:
    from floater.lab.settings import make
    from floater.lab.study.run import study
    from floater.lab.study.settings import StudySettings
    from floater.lab.tasks.registry import import_modules, trust

    _start()
    tree = _read_config(arguments.config, "study", "run", "train")
    settings = make(StudySettings, tree, arguments.config, arguments.overrides)
    import_modules(settings.imports, arguments.config, trusted=_trusted(arguments))
    if arguments.trust_code:
        for source in settings.checkpoints.values():
            trust(source)
    command = shlex.join([arguments.config, *arguments.overrides])
    results = study(settings, command, train=not arguments.report)
    return _reported(results, arguments.json)


def data(arguments: argparse.Namespace) -> None:
    from floater.lab.datasets import listing, prepare

    _start()
    if arguments.name is None:
        print(listing())
    else:
        print(prepare(arguments.name, arguments.to, processes=arguments.processes))


def demo(arguments: argparse.Namespace) -> int:
    from floater.lab.study.demo import demo

    _start()
    return _reported(demo(Path(arguments.run)), arguments.json)


def configs(arguments: argparse.Namespace) -> None:
    every, part = shipped_configs.shipped(), arguments.part.lower()
    found = {name: text for name, text in every.items() if part in name.lower()}
    if not found:
        raise DataError(f"no configuration has '{arguments.part}' in its name; floater configs lists them")
    if arguments.json:
        _print(found, True)
        return
    left = max(map(len, found)) + 2
    for name, text in found.items():
        print(f"{name:<{left}}{textwrap.shorten(text, max(20, width() - left), placeholder=' ...')}")


def init(arguments: argparse.Namespace) -> None:
    origin = shipped_configs.find(arguments.name)
    path = Path(arguments.file or origin.name)
    if path.is_dir():
        path /= origin.name
    if path.exists():
        raise DataError(f"{path} exists; name another file: floater init {arguments.name} FILE")
    _writable(str(path))
    path.write_text(shipped_configs.written(path, origin), encoding="utf-8")
    command = "study" if origin.parent.name == "study" else "train"
    print(path)
    print(f"floater: edit it, then run: floater {command} {path}", file=sys.stderr)


def completion(arguments: argparse.Namespace) -> None:
    import shtab

    print(shtab.complete(arguments.parser, arguments.shell))


def _read_config(path: str, command: str, foreign: str, other: str) -> dict[str, Any]:
    """Read a configuration; refuse one that does not exist, or is for another command.

    Args:
        path: path of the configuration.
        command: name of the command.
        foreign: key that only configurations of the other command have.
        other: name of the other command.
    """
    from floater.lab.settings import read

    if not Path(path).exists():
        if "=" in path:
            raise DataError(f"'{path}' is a setting; the configuration comes first, a .yaml file")
        name = path.removeprefix("configs/").removesuffix(".yaml")
        found = [each for each in shipped_configs.shipped() if name in (each, each.rpartition("/")[2])]
        place = Path(path)
        writable = place.suffix == ".yaml" and place.parent.is_dir()
        file = place if writable else f"{place.stem}.yaml"
        hint = f"floater init {found[0]} {file}" if found else "floater configs lists those to begin with"
        raise DataError(f"{path}: there is no such file; {'type: ' * bool(found)}{hint}")
    if Path(path).is_dir():
        raise DataError(f"{path} is a directory; floater {command} takes a configuration, a .yaml file")
    tree = read(path)
    if tree.get(foreign) is not None:
        raise DataError(f"{path} is for another command; type: floater {other} {path}, not floater {command}")
    return tree


def _task_of(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Return the task of a run and its directory; the error for a file in its place has a hint."""
    from floater.lab.tasks.registry import of_run, trust

    _start()
    run = arguments.run
    if Path(run).is_file():
        raise DataError(f"{run} is a file; the run's directory comes first, and the text with --source {run}")
    if not Path(run).is_dir():
        raise no_directory(run)
    if arguments.trust_code:
        trust(run)
    return of_run(run)


def _trusted(arguments: argparse.Namespace) -> bool:
    """Return whether the modules may be imported that a configuration of the command line names.

    A configuration is the user's own, unless it lies in the directory of a run or a study, which may come
    from elsewhere.
    """
    from floater.lab.study.grid import TRIALS
    from floater.lab.study.run import SETTINGS as STUDY
    from floater.lab.training.checkpoints import last_checkpoint
    from floater.lab.training.run import MODEL, SETTINGS, VOCABULARY

    if arguments.trust_code or any(text.startswith("imports=") for text in arguments.overrides):
        return True
    config = Path(arguments.config).absolute()
    folder = config.parent
    in_run = any((folder / name).is_dir() for name in (MODEL, VOCABULARY)) or last_checkpoint(folder)
    in_study = config.name == STUDY and (folder / TRIALS).is_dir()
    return not ((config.name == SETTINGS and in_run) or in_study or folder.name == TRIALS)


def _options(texts: Sequence[str]) -> dict[str, Any]:
    """Return options by name, parsed from texts name=value with the value in YAML."""
    from floater.lab.settings.yaml_format import NotYamlError, parse

    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise DataError(f"option {text!r} is not of the form name=value")
        if name in given:
            raise DataError(f"option {name!r} is given twice")
        try:
            given[name] = parse(value)
        except NotYamlError as error:
            raise DataError(f"option {name!r} is {value!r}, which is not YAML: {error}") from error
    return given


def _device(name: str | None) -> Any:
    """Return the device of a name, or None for None."""
    import torch

    if name is None:
        return None
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # "meta" has no values
    except (RuntimeError, AssertionError, NotImplementedError):
        own = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        there = ["cpu", *([own.type] if own else [])]
        raise DataError(f"device '{name}' is not there; there are: {', '.join(there)}") from None
    return device


def _reported(results: Results, as_json: bool) -> int:
    """Print the results of a study and return the exit code."""
    from floater.lab.study import tables

    if as_json:
        _print(tables.records(results), True)
    elif results.outcomes:
        print(tables.scores(results).text())
    return int(any(outcome.status == "failed" for outcome in results.outcomes))


def _print(found: Mapping[str, Any] | Sequence[Any], as_json: bool) -> None:
    """Print a result as JSON, or with one line per value."""
    if as_json:
        print(json.dumps(_finite(found), indent=1, ensure_ascii=False, allow_nan=False))
        return
    assert isinstance(found, Mapping)
    left = max(map(len, found)) + 2
    for name, value in found.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        print(f"{name:<{left}}{shown}")


def _finite(value: Any) -> Any:
    """Return a value with None for infinities and NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _writable(path: str | None, *inputs: str | None) -> None:
    """Refuse an output file that cannot be written, or that is an input, before the command runs."""
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
    elif any(given and Path(given).exists() and place.samefile(given) for given in inputs):
        raise DataError(f"the output {path} is an input of the command; name another file")


def _has_output(path: str | None) -> None:
    """Refuse to begin work whose result would be lost, as standard output is closed."""
    if not path and isinstance(sys.stdout, ClosedOutput):
        raise DataError("standard output is closed; name a file with --output FILE")


def _write(lines: Sequence[str], path: str | None) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if path:
        Path(path).write_text(text, encoding="utf-8")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())


def _start() -> None:
    """Show the messages of the library, but no progress bars for the brief loading of a model's files."""
    from transformers.utils import logging

    from floater.lab.console import show_messages
    from floater.lab.training.launchers import settle_processes

    show_messages()
    settle_processes(os.environ)
    logging.disable_progress_bar()
