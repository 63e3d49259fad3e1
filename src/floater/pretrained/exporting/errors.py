"""The error of an export."""


class ExportError(ValueError):
    """A model cannot be written for a reader that does not import this library."""
