"""The configuration file of `floater train` and `floater study`: its arguments, its help, its reading."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from floater.errors import DataError, nearest
from floater.lab.cli import shipped

_NARROW, _WIDE = 60, 120


def add_config(
    parser: argparse.ArgumentParser,
    *,
    example: str,
    summary: str,
    topic: str,
    topics: Callable[[], Sequence[str]],
    settings: Callable[[str], type[Any]],
) -> None:
    """Add the configuration file of a command, the settings that differ from it, and help on settings.

    Args:
        parser: parser of the command.
        example: settings that differ, as an example.
        summary: text after the help: the most used settings.
        topic: noun for the topics of ``--help TOPIC``.
        topics: function that returns their names.
        settings: function that returns the settings of a topic, a dataclass.
    """
    parser.add_argument("config", metavar="CONFIG", help="YAML file; floater init writes one")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help=f"settings that differ, as in {example}"
    )
    parser.add_argument(
        "-h",
        "--help",
        action=_SettingsHelp,
        nargs="?",
        metavar=topic,
        help=f"show this, or every setting{' of a task' if topic == 'TASK' else ''}",
        summary=summary,
        topics=topics,
        settings=settings,
    )


class _SettingsHelp(argparse.Action):
    """Print the help of a command and a summary of its settings; with a topic, all settings of it."""

    def __init__(
        self,
        *args: Any,
        summary: str,
        topics: Callable[[], Sequence[str]],
        settings: Callable[[str], type[Any]],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.summary, self.topics, self.settings = summary, topics, settings

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, topic: Any, option: str | None = None
    ) -> None:
        if topic is None:
            print(f"{parser.format_help()}\n{self.summary.strip()}")
        else:
            from floater.lab.settings import describe

            if topic not in self.topics():
                parser.error(f"no help on '{topic}'; {nearest(topic, self.topics())}")
            print(describe(self.settings(topic), width()))
        parser.exit()


def width() -> int:
    """Return the number of columns of the terminal, within readable limits."""
    return max(_NARROW, min(_WIDE, shutil.get_terminal_size().columns))


def read_config(path: str, command: str, foreign: str, other: str) -> dict[str, Any]:
    """Read a configuration; refuse one that does not exist, or is for another command.

    Args:
        path: path of the configuration.
        command: name of the command.
        foreign: key that only configurations of the other command have.
        other: name of the other command.

    Raises:
        DataError: if the file does not exist, is a directory or is for the other command.
        SettingsError: if it cannot be read.
    """
    from floater.lab.settings import read

    file = Path(path)
    if not file.exists():
        if "=" in path:
            raise DataError(f"'{path}' is a setting; the configuration comes first, a .yaml file")
        names = shipped.matching(path)
        copy = file if file.suffix == ".yaml" and file.parent.is_dir() else f"{file.stem}.yaml"
        hint = (
            f"type: floater init {names[0]} {copy}" if names else "floater configs lists those to begin with"
        )
        raise DataError(f"{path}: there is no such file; {hint}")
    if file.is_dir():
        raise DataError(f"{path} is a directory; floater {command} takes a configuration, a .yaml file")
    tree = read(path)
    if tree.get(foreign) is not None:
        raise DataError(f"{path} is for another command; type: floater {other} {path}, not floater {command}")
    return tree


def is_trusted(arguments: argparse.Namespace) -> bool:
    """Return whether the modules that a configuration on the command line names may be imported.

    A configuration is the user's own, unless it lies in the directory of a run or a study, which may be
    untrusted.
    """
    from floater.lab.study.run import SETTINGS as STUDY
    from floater.lab.study.variants import TRIALS
    from floater.lab.training.checkpoints import last_checkpoint
    from floater.lab.training.run import MODEL, SETTINGS, VOCABULARY

    if arguments.trust_code or any(text.startswith("imports=") for text in arguments.overrides):
        return True
    config = Path(arguments.config).absolute()
    folder = config.parent
    in_run = any((folder / name).is_dir() for name in (MODEL, VOCABULARY)) or last_checkpoint(folder)
    in_study = config.name == STUDY and (folder / TRIALS).is_dir()
    return not ((config.name == SETTINGS and in_run) or in_study or folder.name == TRIALS)
