"""The parser of the command line."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from floater import __version__
from floater.errors import nearest
from floater.lab.cli.commands import COMMANDS
from floater.lab.paths import expand_home


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line; settings may stand before and after options.

    Args:
        arguments: the command line without the program's name; by default that of the process.

    Returns:
        The arguments, with the function `command` to call with them, the `parser` of the command, and the
        `root` parser of all commands.

    Example:
        >>> parse(["study", "my.yaml", "--report", "seeds=[1]"]).overrides
        ['seeds=[1]']
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    root, commands = make_parser()
    if not words:
        root.print_help()
        root.exit(2)
    if words[0] == "help" and words[1:] not in ([], ["help"]):  # floater help COMMAND [TOPIC]
        words = [words[1], "--help", *words[2:]]
    if words[0].startswith("-"):
        if not any(option.startswith(words[0]) for option in root.options):
            root.refuse(words[0])
    elif words[0] not in commands:
        root.error(f"unknown command '{words[0]}'; {nearest(words[0], commands)}")
    parsed, rest = root.parse_known_args(words)
    parser: Parser = parsed.parser
    if "overrides" in parsed:
        for word in rest:
            if word.startswith("-"):
                parser.refuse(word, _setting(word))
        parsed.overrides = [*parsed.overrides, *rest]
    elif "task_options" in parsed:
        parsed.task_options = rest  # the task of the run knows them
    elif rest:
        parser.refuse(rest[0])
    if empty := [name for name, value in vars(parsed).items() if value == "" != parser.get_default(name)]:
        parser.error(f"{empty[0].replace('_', '-')} is empty; a variable of the shell may not be set")
    try:
        return argparse.Namespace(**expand_home(vars(parsed)))
    except ValueError as error:
        parser.error(str(error))


def make_parser() -> tuple[Parser, Mapping[str, Parser]]:
    """Return the parser of the command line, and those of the commands by name."""
    root = Parser(
        prog="floater",
        description="Position encodings for Transformers.",
        epilog="floater help COMMAND describes one command.",
    )
    root.add_argument("--version", action="version", version=f"floater {__version__}")
    parsers = root.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for module in COMMANDS:
        description = " ".join((module.__doc__ or "").split())
        summary = description.split(":")[0].rstrip(".")
        name = module.__name__.rpartition(".")[2]
        # "resolve": train and study have another --help
        parser = parsers.add_parser(name, help=summary, description=description, conflict_handler="resolve")
        parser.set_defaults(command=module.run, parser=parser, root=root)
        module.add_arguments(parser)
    return root, parsers.choices


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=_Formatter, **kwargs)

    @property
    def options(self) -> list[str]:
        """Return the options, such as "--json"."""
        return list(self._option_string_actions)

    def error(self, message: str) -> NoReturn:
        """Print a message, with a hint at the help if it has none, and end the process."""
        command = self.prog.removeprefix("floater").strip()
        message = re.sub(r"^argument [A-Z]+: ", "", message)
        hint = "" if ";" in message else f"; see floater help {command}".rstrip()
        self.exit(2, f"floater: {message}{hint}\n")

    def refuse(self, word: str, hint: str = "") -> NoReturn:
        """End the process because of an unknown argument.

        Args:
            word: the argument; the message has the nearest option, if there is one.
            hint: what to do instead if no option is near; by default to read the help.
        """
        near = difflib.get_close_matches(word.split("=")[0], self.options, n=1, cutoff=0.7)
        hint = f"did you mean {near[0]}?" if near else hint
        self.error(f"{self.prog} takes no '{word}'" + (f"; {hint}" if hint else ""))


class _Formatter(argparse.HelpFormatter):
    """Help formatter with a wider column for commands, whose indentation argparse does not count."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += 2


def _setting(word: str) -> str:
    """Return a hint if an unknown option is the name of a file, or looks like a setting."""
    if os.path.exists(word):
        return f"the file of this name is ./{word}"
    name, _, value = word.lstrip("-").partition("=")
    return f"settings have no dashes: {name}={value or 'VALUE'}" if re.search(r"[.=]", word) else ""
