"""Read a YAML file and ``key=value`` overrides into a typed, nested, frozen dataclass.

The dataclass is the one source: annotations give the types, fields the defaults, the ``Attributes:`` section
of a Google style docstring the meanings. Values are YAML 1.2; see `floater.lab.yaml_format`.
"""

import difflib
import functools
import textwrap
from collections import namedtuple
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import yaml
from docstring_parser import google
from jsonargparse import ArgumentError, ArgumentParser

from floater.lab.yaml_format import MOST_BYTES, Dumper, NotYamlError, parse

T = TypeVar("T")
Tree = dict[str, Any]
# annotation, value or MISSING, text, names, names
_Key = namedtuple("_Key", "type default meaning beside removed")


class SettingsError(ValueError):
    """Settings that cannot be used. The message is one line that names the file or override, and the key."""


def load(cls: type[T], path: str | Path, overrides: Sequence[str] = ()) -> T:
    """Read an instance of ``cls`` from a YAML file and overrides, applied from left to right.

    A dotted key reaches into nested dataclasses and free-form dicts. A dict whose field has names as its
    metadata "beside" takes these names from beside it; keys that its metadata has as "removed", of a former
    version, may be there without a value. A dict in the file replaces the default
    dict; an override of one of its keys keeps the others. Relative paths stay as written: they are relative
    to the working directory, not to the file.

    Args:
        cls: A dataclass, possibly with dataclasses as fields.
        path: A UTF-8 YAML file with a mapping at the top. An empty file means all defaults.
        overrides: ``key=value`` texts, each value written in YAML.

    Raises:
        SettingsError: If the file cannot be read or is larger than settings are, a key is unknown, repeated
            or missing, a value has the wrong type, or ``cls`` itself refuses its values.
        TypeError: If ``cls`` is no dataclass, or holds one inside a union or a container.

    >>> import dataclasses, os
    >>> Training = dataclasses.make_dataclass("Training", [("steps", int), ("lr", float, 1e-3)])
    >>> load(Training, os.devnull, ["steps=100", "lr=3e-4"])
    Training(steps=100, lr=0.0003)
    """
    return make(cls, read(path), str(path), overrides)


def read(path: str | Path) -> Tree:
    """Read the mapping in a YAML file; `make` turns it into settings once it is known of what.

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
            tree = parse(file.read(MOST_BYTES + 1))
        if not isinstance(tree, dict | None):
            raise SettingsError(f"the top level must be a mapping of keys, not {_shown(tree)}")
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
    place, keys = origin, _keys(cls)
    values = {name: key.default for name, key in keys.items() if key.default is not MISSING}
    try:
        values |= _flat(keys, values, tree)
        for override in overrides:
            origin = f"override '{override}'"
            name, equals, text = override.partition("=")
            if not (equals and all(name.split("."))):
                raise SettingsError("expected key=value")
            values |= _flat(keys, values, {name: parse(text)})
        origin = place
        return cast(T, _build(cls, keys, values))
    except (SettingsError, NotYamlError) as error:
        raise SettingsError(" ".join(f"{origin}: {error}".split())) from None


def peek(tree: Tree, name: str, default: Any, overrides: Sequence[str] = ()) -> Any:
    """Return one value at the top of a mapping, as `make` would, before it is known what settings it is of.

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


def dump(instance: Any) -> str:
    """Write every setting as YAML, in field order, so that `load` reads back an equal instance.

    YAML has no tuples: one inside a free-form dict reads back as a list. A value without a plain YAML form
    raises `SettingsError`.

    >>> from dataclasses import make_dataclass
    >>> dump(make_dataclass("Training", [("steps", int), ("lr", float)])(100, 1e-3))
    'steps: 100\\nlr: 0.001\\n'
    """
    try:
        return yaml.dump(_written(instance), Dumper=Dumper, sort_keys=False)
    except yaml.representer.RepresenterError as error:
        raise SettingsError(f"no YAML form for {error.args[-1]!r}") from None


def _written(instance: Any) -> Tree:
    """Return settings as in a file: keys that a dict takes from beside it are written beside it."""
    tree: Tree = {}
    for field in fields(instance):
        value = getattr(instance, field.name)
        if "beside" in field.metadata:
            tree |= value
        else:
            tree[field.name] = _written(value) if is_dataclass(value) else value
    return tree


def describe(cls: type, width: int = 100) -> str:
    """List every key with its type, its default (or ``required``) and its meaning, in ``width`` columns.

    >>> from dataclasses import make_dataclass
    >>> Training = make_dataclass("Training", [("steps", int), ("lr", float, 1e-3)])
    >>> print(describe(Training))
    steps  int    required
    lr     float  0.001
    >>> undocumented(Training)
    ['steps', 'lr']
    """
    keys, lines = _keys(cls), list[str]()
    left = max(map(len, keys), default=0) + 2
    middle = min(24, width - left - 12, max((len(_name(key.type)) for key in keys.values()), default=0))
    for name, key in keys.items():
        default = "" if is_dataclass(key.type) else "[required]"
        if default and key.default is not MISSING:
            default = yaml.dump([key.default], None, Dumper, default_flow_style=True, allow_unicode=True)
        head = f"{name:<{left}}{_name(key.type):<{middle}}  {' '.join(default.split())[1:-1]}"
        lines += textwrap.wrap(head, width, subsequent_indent=" " * left, break_on_hyphens=False)
        lines += textwrap.wrap(key.meaning, width, initial_indent=" " * 4, subsequent_indent=" " * 4)
    return "\n".join(lines)


def undocumented(cls: type) -> list[str]:
    """Name the dotted keys that no ``Attributes:`` section explains; see the example of `describe`."""
    return [name for name, key in _keys(cls).items() if not key.meaning]


def _keys(cls: Any, prefix: str = "", outer: Any = MISSING) -> dict[str, _Key]:
    """Return dotted keys in field order, a dataclass before its own; defaults from ``outer`` if given."""
    (hints, meanings), keys = _described(cls), dict[str, _Key]()
    for field in fields(cls):
        name, kind, factory = field.name, hints[field.name], field.default_factory
        if any(map(is_dataclass, get_args(kind))):
            raise TypeError(f"'{prefix}{name}': a dataclass must be the whole type of a field, not in {kind}")
        default = factory() if callable(factory) and factory != kind else field.default
        default = default if outer is MISSING else getattr(outer, name)
        names = (field.metadata.get(which, ()) for which in ("beside", "removed"))
        keys[prefix + name] = _Key(kind, default, meanings.get(name, ""), *names)
        keys |= _keys(kind, f"{prefix}{name}.", default) if is_dataclass(kind) else {}
    return keys


@functools.cache
def _described(cls: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the types of a dataclass's fields and their meanings, which are slow to find out."""
    params = [param for base in reversed(cls.__mro__) for param in google.parse(base.__doc__ or "").params]
    return get_type_hints(cls), {p.arg_name: " ".join((p.description or "").split()) for p in params}


def _unknown(keys: dict[str, _Key], name: str) -> str:
    above, _, last = name.rpartition(".")
    level = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == above}
    beside = {part: f"{above}.{part}".strip(".") for key in level.values() for part in keys[key].beside}
    near = [(beside | level)[part] for part in difflib.get_close_matches(last, beside | level, 1)]
    near += [key for key in keys if key.endswith(f".{last}")]
    near += [] if level else difflib.get_close_matches(name, keys, 1)
    valid = ", ".join(f"'{key}'" for key in level.values() or keys)
    return f"unknown key '{name}'; " + (f"did you mean '{near[0]}'?" if near else f"the keys are {valid}")


def _flat(keys: dict[str, _Key], values: Tree, tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """Convert values by dotted key; a name within a free-form dict changes that dict."""
    flat: Tree = {}
    for part, value in tree.items():
        if value is None and prefix and part in keys[prefix[:-1]].removed:
            continue
        if (name := f"{prefix}{part}") not in keys:
            free = [
                key for key in keys if any(get_origin(kind) is dict for kind in members_of(keys[key].type))
            ]
            owner = next((key for key in free if name.startswith(f"{key}.")), None)
            place = [] if owner is None else name.removeprefix(f"{owner}.").split(".")
            if owner is None:  # it may be beside the dict that takes it
                above, _, last = name.rpartition(".")
                place = [last]
                level = (key for key in free if key.rpartition(".")[0] == above)
                owner = next((key for key in level if last in keys[key].beside), None)
            if owner is None:
                raise SettingsError(_unknown(keys, name))
            name, value = owner, _put(flat.pop(owner, values.get(owner)), place, value)
        section = is_dataclass(kind := keys[name].type) and isinstance(value, dict)
        new = _flat(keys, values, value, f"{name}.") if section else {name: convert(kind, value, name)}
        if twice := flat.keys() & new.keys():
            raise SettingsError(f"duplicate key '{min(twice)}'")
        flat |= new
    return flat


def _put(tree: Any, parts: list[str], value: Any) -> Any:
    below = tree if isinstance(tree, dict) else {}
    return {**below, parts[0]: _put(below.get(parts[0]), parts[1:], value)} if parts else value


def members_of(kind: Any) -> tuple[Any, ...]:
    """Return the types that an annotation allows.

    >>> members_of(int | None), members_of(str)
    ((<class 'int'>, <class 'NoneType'>), (<class 'str'>,))
    """
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def convert(kind: Any, value: Any, name: str) -> Any:
    """Return ``value`` as a ``kind``, an annotation.

    Raises:
        SettingsError: if it is none; the message has the ``name``.

    >>> convert(float | None, 1, "rate")
    1.0
    """
    # jsonargparse sees scalars only: it would parse texts in a container again
    origin, args, members = get_origin(kind), get_args(kind), members_of(kind)
    scalar = origin is Literal or not (origin or is_dataclass(kind) or kind in (list, tuple, dict, set))
    plain = kind in (bool, int, float, str) and type(value) is kind  # needs no parser
    if kind is Any or plain or (value is None and NoneType in members):
        return value
    if len(members) > 1:
        # The value's own type goes first, so that `float | str` keeps the text '1'.
        for member in sorted(members, key=lambda member: member is not type(value)):
            with suppress(SettingsError):
                return convert(member, value, name)
    elif origin in (list, tuple) and isinstance(value, list | tuple):
        kinds = args if origin is tuple and args[-1] is not ... else args[:1] * len(value)
        if len(kinds) == len(value):
            pairs = enumerate(zip(kinds, value, strict=True))
            return origin(convert(*pair, f"{name}[{i}]") for i, pair in pairs)
    elif origin is dict and isinstance(value, dict):
        texts = [convert(args[0], part, f"key of {name}") for part in value]
        return {part: convert(args[1], value[part], f"{name}.{part}") for part in texts}
    elif kind in (bool, int, float) and isinstance(value, str):  # quoted, or an environment variable
        with suppress(NotYamlError):
            read = parse(value)
            if isinstance(read, int | float):
                return convert(kind, read, name)
    elif value is not None and scalar:
        with suppress(ArgumentError, OverflowError):
            return _parser(kind).parse_object({"value": value}).value
    texts = [
        part for member in members for part in (get_args(member) if get_origin(member) is Literal else ())
    ]
    quoted = str in members or (isinstance(value, bool) and texts)
    quote = "; quote it if a text is meant" if quoted and not isinstance(value, list | dict) else ""
    if (
        float in members
        and isinstance(value, str)
        and value.lower().strip("+-.") in ("inf", "infinity", "nan")
    ):
        raise SettingsError(f"'{name}' is {value}; it must be a finite number")
    got = "null" if value is None else _shown(value)
    raise SettingsError(f"'{name}' must be {_name(kind)}, not {got}{quote}")


@functools.cache
def _parser(kind: Any) -> ArgumentParser:
    """Return the parser of a scalar; making one takes milliseconds."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=kind)
    return parser


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _name(kind: Any) -> str:
    if len(members := members_of(kind)) > 1:
        return " | ".join(map(_name, members))
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    plain = "mapping" if is_dataclass(kind) else "null" if kind is NoneType else ""
    return plain or (kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", ""))


def _build(cls: Any, keys: dict[str, _Key], values: Tree, prefix: str = "") -> Any:
    parts: Tree = {}
    for field in fields(cls):
        name, kind = prefix + field.name, keys[prefix + field.name].type
        if not (name in values or is_dataclass(kind)):
            raise SettingsError(f"missing required key '{name}'")
        parts[field.name] = _build(kind, keys, values, f"{name}.") if is_dataclass(kind) else values[name]
    try:
        return cls(**parts)
    except ValueError as error:
        raise SettingsError(f"{prefix[:-1]}: {error}" if prefix else str(error)) from None
