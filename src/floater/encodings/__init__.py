"""The catalogue of position models: each file in the folders below registers its own."""

import pkgutil
from importlib import import_module

from floater.encodings import plugins
from floater.encodings.card import Card, SurveyRow
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import build, catalogue, options, register
from floater.encodings.spec import StackSpec

__all__ = [
    "AttentionContext",
    "Card",
    "PositionError",
    "PositionModel",
    "StackSpec",
    "SurveyRow",
    "build",
    "catalogue",
    "options",
    "register",
]

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
plugins.load()
