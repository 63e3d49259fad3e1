"""Export of plugged and extended models to programs that do not import this library."""

from floater.pretrained.exporting.errors import ExportError
from floater.pretrained.exporting.export import Export, export
from floater.pretrained.exporting.plain import plain_model

__all__ = ["Export", "ExportError", "export", "plain_model"]
