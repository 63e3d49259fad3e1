"""Positions of the tokens of a batch: the value `Positions` and its constructors by kind."""

from floater.positions.pytree import register
from floater.positions.value import Positions
from floater.structures import Structure

register(Positions)
register(Structure)

__all__ = ["Positions"]
