"""Settings as text: YAML, which `load` reads back, and a readable list."""

from __future__ import annotations

import textwrap
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import yaml

from floater.lab.settings.keys import Key, keys_of
from floater.lab.settings.values import SettingsError, type_name
from floater.lab.settings.yaml_format import Dumper


def dump(instance: Any) -> str:
    """Write every setting as YAML, in field order, so that `load` reads back an equal instance.

    YAML has no tuples: one inside a free-form dict reads back as a list.

    Raises:
        SettingsError: If a value has no plain YAML form.

    >>> from dataclasses import make_dataclass
    >>> dump(make_dataclass("Training", [("steps", int), ("lr", float)])(100, 1e-3))
    'steps: 100\\nlr: 0.001\\n'
    """
    try:
        return yaml.dump(_tree(instance), Dumper=Dumper, sort_keys=False)
    except yaml.representer.RepresenterError as error:
        raise SettingsError(f"no YAML form for {error.args[-1]!r}") from None


def _tree(instance: Any) -> dict[str, Any]:
    """Return settings as in a file: keys that a dict takes from beside it are written beside it."""
    tree: dict[str, Any] = {}
    for field in fields(instance):
        value = getattr(instance, field.name)
        if "beside" in field.metadata:
            tree |= value
        else:
            tree[field.name] = _tree(value) if is_dataclass(value) else value
    return tree


def describe(cls: type, width: int = 100) -> str:
    """List every key with its type, its default (or ``required``) and its meaning, in ``width`` columns.

    >>> from dataclasses import make_dataclass
    >>> Training = make_dataclass("Training", [("steps", int), ("lr", float, 1e-3)])
    >>> print(describe(Training))
    steps  int    required
    lr     float  0.001
    """
    keys, lines = keys_of(cls), list[str]()
    types = {name: type_name(key.annotation) for name, key in keys.items()}
    left = max(map(len, keys), default=0) + 2
    middle = min(24, width - left - 12, max(map(len, types.values()), default=0))
    for name, key in keys.items():
        head = f"{name:<{left}}{types[name]:<{middle}}  {_default(key)}"
        lines += textwrap.wrap(head, width, subsequent_indent=" " * left, break_on_hyphens=False)
        lines += textwrap.wrap(key.meaning, width, initial_indent=" " * 4, subsequent_indent=" " * 4)
    return "\n".join(lines)


def _default(key: Key) -> str:
    """Return the default of a key in YAML; nothing for a section, whose keys have theirs."""
    if is_dataclass(key.annotation):
        return ""
    if key.default is MISSING:
        return "required"
    # in a list, because a text alone would be followed by the mark that ends a document
    text = yaml.dump([key.default], None, Dumper, default_flow_style=True, allow_unicode=True)
    return " ".join(text.split())[1:-1]
