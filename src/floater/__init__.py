"""Position information for Transformers: learned continuous positions (FLOATER) and their relatives."""

from floater.encodings import PositionError, PositionModel, build, catalogue
from floater.flow import FlowEncoder, MLPField, SinusoidField, ZeroField, solve
from floater.positions import Positions
from floater.pretrained import bake, extend, load, plug, save, unplug
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
    "extend",
    "load",
    "plug",
    "save",
    "solve",
    "unplug",
]
