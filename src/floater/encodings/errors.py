"""The error of position models."""

from __future__ import annotations


class PositionError(ValueError):
    """A position model was asked for something that it cannot do."""
