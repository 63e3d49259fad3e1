"""The error of position models."""

from __future__ import annotations


class PositionError(ValueError):
    """A position model does not support its input or its options."""
