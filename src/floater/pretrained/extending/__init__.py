"""Longer contexts for pretrained models."""

from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.extend import extend
from floater.pretrained.extending.extension import Extension
from floater.pretrained.extending.install import trained_positions, training_spans
from floater.pretrained.extending.search import FactorSearch, search_factors

__all__ = [
    "ExtendError",
    "Extension",
    "FactorSearch",
    "extend",
    "search_factors",
    "trained_positions",
    "training_spans",
]
