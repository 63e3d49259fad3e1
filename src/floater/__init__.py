"""Position encodings for Transformers: learned continuous positions (FLOATER) and their relatives.

Names are imported at first use (PEP 562), so that `import floater` takes no time; it also makes models that
were saved with a flow load with Transformers' own classes (`floater.autoload`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from floater import autoload as _autoload

__version__ = "0.1.0rc1"

if TYPE_CHECKING:
    from floater.encodings import PositionError, PositionModel, build, catalogue
    from floater.flow import FlowEncoder, MLPField, SinusoidField, ZeroField, solve
    from floater.positions import Positions
    from floater.pretrained import bake, export, extend, load, plug, save, unplug
    from floater.transformer import FloaterConfig

__all__ = [
    "FloaterConfig",
    "FlowEncoder",
    "MLPField",
    "PositionError",
    "PositionModel",
    "Positions",
    "SinusoidField",
    "ZeroField",
    "bake",
    "build",
    "catalogue",
    "export",
    "extend",
    "load",
    "plug",
    "save",
    "solve",
    "unplug",
]

_NAMES = {
    "encodings": ("PositionError", "PositionModel", "build", "catalogue"),
    "flow": ("FlowEncoder", "MLPField", "SinusoidField", "ZeroField", "solve"),
    "positions": ("Positions",),
    "pretrained": ("bake", "export", "extend", "load", "plug", "save", "unplug"),
    "transformer": ("FloaterConfig",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = {*_NAMES, "lab", "structures", "testing"}


def __getattr__(name: str) -> Any:
    """Import a public name, or a package of the library, at its first use."""
    if name in _HOME:
        value = getattr(import_module(f"floater.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"floater.{name}")
    else:
        raise AttributeError(f"module 'floater' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})


_autoload.install()
