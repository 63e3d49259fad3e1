"""Settings as YAML, which `load` reads back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import yaml

from floater.lab.settings.values import SettingsError
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
