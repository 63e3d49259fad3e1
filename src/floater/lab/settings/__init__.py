"""Read a YAML file and ``key=value`` overrides into a typed, nested, frozen dataclass.

The dataclass is the one source: annotations give the types, fields the defaults, the ``Attributes:`` section
of a Google style docstring the meanings. Values are YAML 1.2; see `floater.lab.settings.yaml_format`.
"""

from floater.lab.settings.loading import Tree, load, make, peek, read
from floater.lab.settings.text import describe, dump
from floater.lab.settings.values import SettingsError, convert

__all__ = [
    "SettingsError",
    "Tree",
    "convert",
    "describe",
    "dump",
    "load",
    "make",
    "peek",
    "read",
]
