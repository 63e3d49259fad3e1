"""The keys of a dataclass of settings: what a file may contain, with types, defaults and meanings."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from docstring_parser import google

from floater.annotations import members_of

_CLOSE = 0.8
"""Least similarity of a name to that of a key of another section, 1 being the same name."""


class Key(NamedTuple):
    """A key of settings.

    Attributes:
        annotation: Annotation of the field.
        default: Its default; ``MISSING`` for a required key.
        meaning: Its text in the ``Attributes:`` section; empty where there is none.
        beside: Names that may be written beside the key instead of in its dict.
        removed: Keys of a former version, which the section may have without a value.
    """

    annotation: Any
    default: Any
    meaning: str
    beside: Collection[str]
    removed: Collection[str]

    @property
    def is_free_form(self) -> bool:
        """Return whether the key may have a dict, whose keys are not those of a dataclass."""
        return any(get_origin(member) is dict for member in members_of(self.annotation))


def keys_of(cls: Any, prefix: str = "", instance: Any = MISSING) -> dict[str, Key]:
    """Return the dotted keys of a dataclass in field order, a section before its own keys.

    Args:
        cls: The dataclass.
        prefix: The dotted name of the section that it is, with a dot at the end.
        instance: The instance whose values are the defaults; by default those of the fields.

    Raises:
        TypeError: If ``cls`` is not a dataclass, or holds one inside a union or a container.
    """
    (hints, meanings), keys = _described(cls), dict[str, Key]()
    for field in fields(cls):
        name, annotation, factory = field.name, hints[field.name], field.default_factory
        if any(map(is_dataclass, get_args(annotation))):
            raise TypeError(
                f"'{prefix}{name}': a dataclass must be the whole type of a field, not in {annotation}"
            )
        default = factory() if callable(factory) and factory != annotation else field.default
        default = default if instance is MISSING else getattr(instance, name)
        names = (field.metadata.get(which, ()) for which in ("beside", "removed"))
        keys[prefix + name] = Key(annotation, default, meanings.get(name, ""), *names)
        keys |= keys_of(annotation, f"{prefix}{name}.", default) if is_dataclass(annotation) else {}
    return keys


@functools.cache
def _described(cls: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the types of a dataclass's fields and their meanings, which are slow to determine."""
    params = [param for base in reversed(cls.__mro__) for param in google.parse(base.__doc__ or "").params]
    return get_type_hints(cls), {p.arg_name: " ".join((p.description or "").split()) for p in params}


def unknown(keys: Mapping[str, Key], name: str) -> str:
    """Return the message on an unknown key, with the nearest key or those of its section.

    Args:
        keys: What `keys_of` returns.
        name: The dotted name that is no key.
    """
    section, _, last = name.rpartition(".")
    parts = [(*key.rpartition(".")[::2], key) for key in keys]
    level = {part: key for outer, part, key in parts if outer == section}
    beside = {part: f"{section}.{part}".strip(".") for key in level.values() for part in keys[key].beside}
    elsewhere = {part: key for _, part, key in reversed(parts)}
    near = [(beside | level)[part] for part in difflib.get_close_matches(last, beside | level, 1)]
    near += [] if level else difflib.get_close_matches(name, keys, 1)
    near += [elsewhere[part] for part in difflib.get_close_matches(last, elsewhere, 1, cutoff=_CLOSE)]
    valid = ", ".join(f"'{key}'" for key in level.values() or keys)
    return f"unknown key '{name}'; " + (f"did you mean '{near[0]}'?" if near else f"the keys are {valid}")
