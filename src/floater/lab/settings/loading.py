"""Settings from a YAML file and overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from floater.lab.settings.keys import Key, keys_of, unknown
from floater.lab.settings.values import SettingsError, convert, shorten
from floater.lab.settings.yaml_format import MAX_BYTES, NotYamlError, parse

T = TypeVar("T")
Tree = dict[str, Any]


def load(cls: type[T], path: str | Path, overrides: Sequence[str] = ()) -> T:
    """Read an instance of ``cls`` from a YAML file and overrides, applied from left to right.

    A dotted key reaches into nested dataclasses and free-form dicts. A dict whose field has names as its
    metadata "beside" takes these names from beside it; keys that its metadata has as "removed", of a former
    version, may be there without a value. A dict in the file replaces the default dict; an override of one of
    its keys keeps the others. Relative paths stay as written: they are relative to the working directory, not
    to the file.

    Args:
        cls: A dataclass, possibly with dataclasses as fields.
        path: A UTF-8 YAML file with a mapping at the top. An empty file means all defaults.
        overrides: ``key=value`` texts, each value written in YAML.

    Raises:
        SettingsError: If the file cannot be read or is larger than settings are, a key is unknown, repeated
            or missing, a value has the wrong type, or ``cls`` itself refuses its values.
        TypeError: If ``cls`` is not a dataclass, or holds one inside a union or a container.

    >>> import dataclasses, os
    >>> Training = dataclasses.make_dataclass("Training", [("steps", int), ("lr", float, 1e-3)])
    >>> load(Training, os.devnull, ["steps=100", "lr=3e-4"])
    Training(steps=100, lr=0.0003)
    """
    return make(cls, read(path), str(path), overrides)


def read(path: str | Path) -> Tree:
    """Read the mapping in a YAML file; `make` makes settings of it, once their class is known.

    Args:
        path: See `load`.

    Raises:
        SettingsError: If the file cannot be read, is larger than settings are, or holds no mapping.

    >>> import os
    >>> read(os.devnull)
    {}
    """
    try:
        with Path(path).open("rb") as file:  # it may be no settings: a device, or data
            tree = parse(file.read(MAX_BYTES + 1))
        if not isinstance(tree, dict | None):
            raise SettingsError(f"the top level must be a mapping of keys, not {shorten(tree)}")
    except OSError as error:
        raise SettingsError(f"{error.filename or path}: {error.strerror or error}") from None
    except (SettingsError, NotYamlError) as error:
        raise SettingsError(" ".join(f"{path}: {error}".split())) from None
    return tree or {}


def make(cls: type[T], tree: Mapping[str, Any], origin: str, overrides: Sequence[str] = ()) -> T:
    """Make an instance of ``cls`` from what a YAML file holds, as `load` does.

    Args:
        cls: See `load`.
        tree: A mapping of keys, nested as in the file.
        origin: Where it comes from, for messages.
        overrides: See `load`.

    Raises:
        SettingsError: See `load`.

    >>> from dataclasses import make_dataclass
    >>> make(make_dataclass("Training", [("steps", int), ("lr", float, 1e-3)]), {"steps": 100}, "a trial")
    Training(steps=100, lr=0.001)
    """
    keys = keys_of(cls)
    values = {name: key.default for name, key in keys.items() if key.default is not MISSING}
    source = origin  # of the values that a message is about
    try:
        values |= _flat(keys, values, tree)
        for override in overrides:
            source = f"override '{override}'"
            name, equals, text = override.partition("=")
            if not (equals and all(name.split("."))):
                raise SettingsError("expected key=value")
            values |= _flat(keys, values, {name: parse(text)})
        source = origin
        return cast(T, _build(cls, keys, values))
    except (SettingsError, NotYamlError) as error:
        raise SettingsError(" ".join(f"{source}: {error}".split())) from None


def peek(tree: Tree, name: str, default: Any, overrides: Sequence[str] = ()) -> Any:
    """Return one value at the top of a mapping, as `make` would, before the class of the settings is known.

    Args:
        tree: What `read` returns.
        name: The key.
        default: What to return where neither the mapping nor an override has it.
        overrides: As for `load`.

    Raises:
        SettingsError: If an override of the key cannot be read.

    >>> peek({"task": "tagging"}, "task", "translation", ["lr=1", "task=language_modeling"])
    'language_modeling'
    """
    value = tree.get(name, default)
    for override in overrides:
        key, _, text = override.partition("=")
        if key == name:
            try:
                value = parse(text)
            except NotYamlError as error:
                raise SettingsError(f"override '{override}': {error}") from None
    return value


def _flat(keys: dict[str, Key], values: Tree, tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """Return converted values by dotted key; a name within a free-form dict changes that dict.

    Args:
        keys: What `keys_of` returns.
        values: Values so far, by dotted key.
        tree: Values by their names in the section ``prefix``, which may be dotted.
        prefix: The dotted name of the section, with a dot at the end.
    """
    flat: Tree = {}
    for part, value in tree.items():
        if value is None and prefix and part in keys[prefix[:-1]].removed:
            continue
        name = f"{prefix}{part}"
        if name not in keys:
            name, path = _owner(keys, name)
            value = _put(flat.pop(name, values.get(name)), path, value)
        annotation = keys[name].annotation
        is_section = is_dataclass(annotation) and isinstance(value, dict)
        new = (
            _flat(keys, values, value, f"{name}.") if is_section else {name: convert(annotation, value, name)}
        )
        if twice := flat.keys() & new.keys():
            raise SettingsError(f"duplicate key '{min(twice)}'")
        flat |= new
    return flat


def _owner(keys: dict[str, Key], name: str) -> tuple[str, list[str]]:
    """Return the free-form dict that a dotted name belongs to, and the keys that lead to it there.

    Raises:
        SettingsError: If it belongs to none; the message has the nearest key.
    """
    section, _, last = name.rpartition(".")
    dicts = [key for key in keys if keys[key].is_free_form]
    for key in dicts:
        if name.startswith(f"{key}."):
            return key, name.removeprefix(f"{key}.").split(".")
    for key in dicts:  # it may be beside the dict that takes it
        if key.rpartition(".")[0] == section and last in keys[key].beside:
            return key, [last]
    raise SettingsError(unknown(keys, name))


def _put(tree: Any, path: list[str], value: Any) -> Any:
    """Return a copy of nested dicts in which the value at a path of keys is another one."""
    below = tree if isinstance(tree, dict) else {}
    return {**below, path[0]: _put(below.get(path[0]), path[1:], value)} if path else value


def _build(cls: Any, keys: dict[str, Key], values: Tree, prefix: str = "") -> Any:
    """Return an instance of a dataclass, its sections built before it, from values by dotted key."""
    parts: Tree = {}
    for field in fields(cls):
        name = prefix + field.name
        annotation = keys[name].annotation
        if is_dataclass(annotation):
            parts[field.name] = _build(annotation, keys, values, f"{name}.")
        elif name in values:
            parts[field.name] = values[name]
        else:
            raise SettingsError(f"missing required key '{name}'")
    try:
        return cls(**parts)
    except ValueError as error:
        raise SettingsError(f"{prefix[:-1]}: {error}" if prefix else str(error)) from None
