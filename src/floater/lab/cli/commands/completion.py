"""Print the completion script of a shell, with the names of encodings, configurations and plots."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell",
        choices=("bash", "zsh", "tcsh"),
        help="as in: floater completion bash > ~/.local/share/bash-completion/completions/floater",
    )


def run(arguments: argparse.Namespace) -> None:
    import shtab

    (commands,) = (each.choices for each in arguments.root._actions if isinstance(each.choices, dict))
    for (command, argument), names in _names(commands).items():
        (action,) = (each for each in commands[command]._actions if each.dest == argument)
        action.choices = list(names)
    print(shtab.complete(arguments.root, arguments.shell))


def _names(commands: Iterable[str]) -> Mapping[tuple[str, str], Iterable[str]]:
    """Return the names that an argument of a command may be; files are left to the shell."""
    from floater.encodings import catalogue
    from floater.lab.cli.shipped import shipped
    from floater.lab.study.plots import FIGURES, PLOTS

    encodings = catalogue()
    return {
        ("init", "name"): shipped(),
        ("models", "names"): encodings,
        ("plot", "encoding"): encodings,
        ("plot", "kind"): PLOTS,
        ("plot", "survey"): FIGURES,
        ("help", "topic"): commands,
    }
