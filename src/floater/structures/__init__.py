"""Trees and graphs over the tokens of a batch."""

from floater.structures.structure import Structure, graphs, trees

__all__ = ["Structure", "graphs", "trees"]
