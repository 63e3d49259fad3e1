"""Positions of the tokens of a batch: the value `Positions` and its constructors."""

from floater.positions.continuing import continue_positions
from floater.positions.inputs import build_positions, merge_positions
from floater.positions.pytree import register
from floater.positions.value import Positions
from floater.structures import Structure

# without `starts`, which would outlive the positions that it is true of: a map may change the leaves
register(Positions, *Positions.__match_args__, "below")
register(Structure, *Structure.__match_args__)

__all__ = ["Positions", "build_positions", "continue_positions", "merge_positions"]
