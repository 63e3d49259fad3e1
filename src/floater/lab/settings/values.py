"""A value of a setting against the annotation of its field, with messages for the person who wrote it."""

from __future__ import annotations

from dataclasses import is_dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from floater.annotations import Mismatch, as_scalar, members_of
from floater.annotations import convert as convert_value
from floater.errors import DataError
from floater.lab.settings.yaml_format import parse


class SettingsError(DataError):
    """Settings that cannot be used. The message is one line that names the file or override, and the key."""


def convert(annotation: Any, value: Any, name: str) -> Any:
    """Return a value as its annotation has it; a quoted number counts as a number.

    Args:
        annotation: See `floater.annotations.convert`.
        value: The value.
        name: The name of the setting, for the message.

    Raises:
        SettingsError: If the annotation does not allow the value; the message has the ``name``.

    >>> convert(float | None, 1, "rate"), convert(int, "1_000", "steps")
    (1.0, 1000)
    >>> convert(tuple[float, float], [0.9, "high"], "betas")
    Traceback (most recent call last):
    floater.lab.settings.values.SettingsError: 'betas[1]' must be float, not 'high'
    """
    try:
        return convert_value(annotation, value, name, _read_scalar)
    except Mismatch as error:
        raise SettingsError(_message(error)) from None


def _read_scalar(annotation: Any, value: Any) -> Any:
    """Return a value as a scalar; a text, quoted or of an environment variable, may be a number."""
    if annotation in (bool, int, float) and isinstance(value, str):
        number = parse(value)
        return as_scalar(annotation, value if isinstance(number, str) else number)
    return as_scalar(annotation, value)


def _message(error: Mismatch) -> str:
    """Return a message on an invalid value, with what may have been meant."""
    members, value = members_of(error.annotation), error.value
    words = str(value).lower().strip("+-.")
    if float in members and isinstance(value, str) and words in ("inf", "infinity", "nan"):
        return f"'{error.path}' is {value}; it must be a finite number"
    has_literals = any(get_origin(member) is Literal for member in members)
    is_quotable = (str in members or (isinstance(value, bool) and has_literals)) and not isinstance(
        value, list | dict
    )
    hint = "; quote it if a text is meant" if is_quotable else ""
    text = "null" if value is None else shorten(value)
    if value == [None]:
        text = "a list of null, as YAML reads -"
    return f"'{error.path}' must be {type_name(error.annotation)}, not {text}{hint}"


def shorten(value: Any) -> str:
    """Return a value as a message shows it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def type_name(annotation: Any) -> str:
    """Return the name of an annotation as a person reads it.

    >>> type_name(int | None), type_name(list[str]), type_name(Literal["a", "b"])
    ('int | null', 'list[str]', "one of 'a', 'b'")
    """
    if len(members := members_of(annotation)) > 1:
        return " | ".join(map(type_name, members))
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(repr, get_args(annotation)))
    if is_dataclass(annotation):
        return "mapping"
    if annotation is NoneType:
        return "null"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
