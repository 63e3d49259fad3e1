"""Options of `floater evaluate` that are specific to a task: the parameters of its `evaluate`."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_type_hints

from floater.annotations import members_of
from floater.lab.paths import expand_home

Parameters = Mapping[str, inspect.Parameter]


def parameters_of(evaluate: Any) -> Parameters:
    """Return the parameters that an option can set, by name, with their annotations as types.

    These are all but the run, and those whose annotation is None or has a dataclass.

    Args:
        evaluate: the method of a task.

    Example:
        >>> def evaluate(run: str, source: None = None, *, shortest: int = 0): ...
        >>> parameters_of(evaluate)
        {'shortest': <Parameter "shortest: int = 0">}
    """
    hints: dict[str, Any] = {}
    with suppress(NameError):  # annotations for type checkers only
        hints = get_type_hints(evaluate)
    parameters = {}
    for name, parameter in list(inspect.signature(evaluate).parameters.items())[1:]:
        annotation = hints.get(name, Any)
        is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if not (is_variadic or annotation is NoneType or any(map(is_dataclass, members_of(annotation)))):
            parameters[name] = parameter.replace(annotation=annotation)
    return parameters


def flag(name: str) -> str:
    """Return the option of a parameter.

    Example:
        >>> flag("batch_size")
        '--batch-size'
    """
    return f"--{name.replace('_', '-')}"


def parse_options(
    parser: argparse.ArgumentParser, words: list[str], parameters: Parameters
) -> tuple[dict[str, Any], list[str]]:
    """Read options of a task.

    A value is YAML, except where the annotation has texts and paths only. A boolean parameter has two flags
    without a value, as in `--strict` and `--no-strict`.

    Args:
        parser: an empty parser.
        words: words of the command line.
        parameters: parameters that may be set, of `parameters_of`.

    Returns:
        The values by name, and the words that are no option of the task.

    Raises:
        SettingsError: if the annotation of a parameter does not allow a value.

    Example:
        >>> def evaluate(run: str, source: str, *, levels: list[int], strict: bool = False): ...
        >>> words = ["--levels", "[1, 2]", "--strict"]
        >>> parse_options(argparse.ArgumentParser(), words, parameters_of(evaluate))
        ({'levels': [1, 2], 'strict': True}, [])
    """
    for name, parameter in parameters.items():
        is_switch = parameter.annotation is bool
        parser.add_argument(
            flag(name),
            dest=name,
            action=argparse.BooleanOptionalAction if is_switch else "store",
            default=argparse.SUPPRESS,
        )
    parsed, unknown = parser.parse_known_args(words)
    values = {
        name: _convert(parameters[name].annotation, value, flag(name)) for name, value in vars(parsed).items()
    }
    return expand_home(values), unknown


def _convert(annotation: Any, value: Any, name: str) -> Any:
    """Return the value of an option; a text is read as YAML where the annotation allows more than texts."""
    from floater.lab.settings import SettingsError, convert
    from floater.lab.settings.yaml_format import NotYamlError, parse

    is_text = all(member in (str, Path, NoneType) for member in members_of(annotation))
    if isinstance(value, str) and not is_text:
        with suppress(NotYamlError, SettingsError):
            return convert(annotation, parse(value), name)
    return convert(annotation, value, name)
