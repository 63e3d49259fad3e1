"""Longer contexts for pretrained models."""

from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.extend import Extension, extend
from floater.pretrained.extending.installed import position_parameters, training_spans

__all__ = ["ExtendError", "Extension", "extend", "position_parameters", "training_spans"]
