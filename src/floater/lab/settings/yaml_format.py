"""YAML as settings are written in it: scalars of YAML 1.2, within limits.

Plain scalars are those of the core schema of YAML 1.2. YAML 1.1, which PyYAML reads, has further forms that
few people intend: 010 is 8, 12:30 is 750, 2026-01-01 is a date, no is false. Beyond the core schema, an
integer may be grouped in thousands by underscores, or binary (0b101). Words that are booleans in YAML 1.1
only are refused, because both meanings are common.
"""

import math
import re
import reprlib
from pathlib import PurePath
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.reader import ReaderError

MAX_BYTES = 2**20
"""Largest size of a YAML file in bytes; the largest that ships has 6 kB."""
MAX_NODES = 10**5
"""Largest number of values in a YAML file; a value that an alias repeats counts each time."""
MAX_DEPTH = 40
"""Largest depth of nested collections in a YAML file."""
MAX_BITS = 1024
"""Largest number of bits of an integer; larger ones exceed the range of floating-point numbers."""


class NotYamlError(ValueError):
    """A text that is not YAML, or exceeds the limits; the message is one line and says why."""


def parse(text: str | bytes) -> Any:
    """Return the value of a text in YAML.

    Args:
        text: a value on one line, or the bytes of a file, whose lines errors then name.

    Raises:
        NotYamlError: If it is not YAML, or larger or deeper than settings are.

    >>> parse("[1, 3e-4, 010, 1_000, 12:30]")
    [1, 0.0003, 10, 1000, '12:30']
    >>> parse("no")
    Traceback (most recent call last):
    floater.lab.settings.yaml_format.NotYamlError: no can mean false or a text; write false, or 'no' in quotes
    """
    if len(text) > MAX_BYTES:
        raise NotYamlError(f"more than {MAX_BYTES:,} bytes: these are not settings")
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        words = (getattr(error, part, None) for part in ("context", "problem"))
        reason = ", ".join(filter(None, words)) or error
        if isinstance(error, ReaderError):
            reason = f"not text in UTF-8 (position {error.position})"
        mark = getattr(error, "problem_mark", None) if isinstance(text, bytes) else None
        raise NotYamlError(f"{f'line {mark.line + 1}: ' if mark else ''}{reason}") from None


class _Loader(yaml.SafeLoader):
    """A loader of the core schema that keeps the limits above: aliases could fill the memory."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._depth = 0
        self._sizes: dict[int, int] = {}  # nodes in each node that is composed, by its identity

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark, is_alias = event.start_mark, isinstance(event, yaml.AliasEvent)
        if self._depth == MAX_DEPTH:
            raise ComposerError(None, None, f"nested more than {MAX_DEPTH} deep", mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            raise ComposerError(None, None, "an alias stands for what it is in", mark)
        if node is not None and not is_alias:
            parts = [] if isinstance(node, yaml.ScalarNode) else node.value
            below = (part for each in parts for part in (each if isinstance(each, tuple) else (each,)))
            self._sizes[id(node)] = size = 1 + sum(self._sizes[id(part)] for part in below)
            if size > MAX_NODES:
                raise ComposerError(None, None, f"more than {MAX_NODES:,} values", mark)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (AttributeError, LookupError, ValueError):  # a scalar that is not of its tag: !!bool maybe
            wrong = f"{reprlib.repr(node.value)} is not a valid {node.tag.rpartition(':')[2]}"
            raise ConstructorError(None, None, wrong, node.start_mark) from None

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        digits = node.value.replace("_", "").lower()
        # Python reads no more than thousands of decimal digits
        long = len(digits) > MAX_BITS
        value = 0 if long else int(digits, _BASES.get(digits.lstrip("+-")[:2], 10))
        if long or value.bit_length() > MAX_BITS:
            raise ConstructorError(None, None, f"a number of more than {MAX_BITS} bits", node.start_mark)
        return value

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        value = float(super().construct_yaml_float(node))
        mantissa = node.value.lower().partition("e")[0]
        overflows = math.isinf(value) and "inf" not in mantissa
        if overflows or (not value and mantissa.strip("+-0._")):
            beyond = f"{node.value} is beyond the range of floating-point numbers"
            raise ConstructorError(None, None, beyond, node.start_mark)
        return value

    def construct_word(self, node: yaml.ScalarNode) -> Any:
        boolean = str(node.value.lower() in ("yes", "on")).lower()
        hint = f"{node.value} can mean {boolean} or a text; write {boolean}, or '{node.value}' in quotes"
        raise ConstructorError(None, None, hint, node.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = [key.value for key, _ in node.value]
        for i, (key, value) in enumerate(node.value):
            if key.value in seen[:i]:
                raise ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
            plain = isinstance(key, yaml.ScalarNode) and key.style is None
            # {delta:0.1} is a key without a value
            if plain and ":" in key.value and value.value == "" and value.style is None:
                name, _, rest = key.value.partition(":")
                hint = f"'{key.value}' needs a space after the colon: {name}: {rest}"
                raise ConstructorError(None, None, hint, key.start_mark)
        return super().construct_mapping(node, deep)


class Dumper(yaml.SafeDumper):
    """A dumper that writes a path as text."""


_BASES = {"0x": 16, "0o": 8, "0b": 2}
_TAG = "tag:yaml.org,2002:"
_WORD = "!word"
_SCALARS = {
    f"{_TAG}null": ("~|null|Null|NULL|", ["~", "n", "N", ""]),
    f"{_TAG}merge": ("<<", ["<"]),
    f"{_TAG}bool": ("true|True|TRUE|false|False|FALSE", list("tTfF")),
    _WORD: ("yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF", list("yYnNoO")),
    f"{_TAG}int": (r"[-+]?(\d+|\d{1,3}(_\d{3})+|0[xX][\da-fA-F]+|0o[0-7]+|0b[01]+)", list("-+0123456789")),
    f"{_TAG}float": (
        r"[-+]?((\d+\.\d*|\.\d+)([eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.(inf|Inf|INF))|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
"""Patterns of plain scalars and the characters that they begin with, by tag."""
_Loader.yaml_implicit_resolvers = {}
for _tag, (_pattern, _first) in _SCALARS.items():
    # The writer keeps those of YAML 1.1, and so quotes every text that either version would read otherwise.
    for _side in (_Loader, Dumper):
        _side.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern})$", re.ASCII), _first)
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)
_Loader.add_constructor(f"{_TAG}float", _Loader.construct_yaml_float)
_Loader.add_constructor(_WORD, _Loader.construct_word)
Dumper.add_multi_representer(PurePath, lambda dumper, path: dumper.represent_str(str(path)))
