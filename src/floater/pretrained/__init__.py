"""FLOATER inside pretrained models (Liu et al. 2020, section 3.3)."""

from floater._hf import OLDEST as _OLDEST  # noqa: F401  (it refuses a missing Transformers in one line)
from floater.pretrained.exporting import Export, ExportError, export, plain_model
from floater.pretrained.extending import ExtendError, Extension, FactorSearch, extend, search_factors
from floater.pretrained.families import FAMILIES, PlugError
from floater.pretrained.plug import bake, plug, unplug
from floater.pretrained.report import Report
from floater.pretrained.saving import load, save

__all__ = [
    "FAMILIES",
    "Export",
    "ExportError",
    "ExtendError",
    "Extension",
    "FactorSearch",
    "PlugError",
    "Report",
    "bake",
    "export",
    "extend",
    "load",
    "plain_model",
    "plug",
    "save",
    "search_factors",
    "unplug",
]
