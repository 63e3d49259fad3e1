"""BERT: a table of learned position vectors (Devlin et al. 2018; Gehring et al. 2017)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from floater.encodings.absolute.added import AddedVectors
from floater.encodings.model import Frame, PositionError, register
from floater.positions import Positions


@register("learned")
class Learned(AddedVectors):
    """One free vector per position, at the input or one table per block (Liu et al. 2020, section 2.2).

    Bounded: a position past the table is an error, never clipped.

    Args:
        frame: the stack of blocks it serves; max_length is the table size.
        blocks: "input", "all", or a list of block indices; each has a table of its own.
    """

    reference = "Devlin et al. 2018"

    def __init__(self, frame: Frame, *, blocks: str | list[int] = "input") -> None:
        super().__init__(frame, blocks)
        self.tables = nn.ModuleDict({str(n): nn.Embedding(frame.max_length, frame.dim) for n in self.blocks})
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in self.tables.values():
            nn.init.normal_(table.weight, std=self.frame.dim**-0.5)

    def prepare(self, positions: Positions) -> Tensor:
        query = positions.query
        if query.is_floating_point():
            raise PositionError("learned positions are integers; real times need a model such as 'floater'")
        if query.numel() and int(query.max()) >= self.frame.max_length:
            raise PositionError(
                f"learned positions end at {self.frame.max_length - 1} (max_length {self.frame.max_length}); "
                f"position {int(query.max())} was asked for"
            )
        return query

    def vectors(self, state: Tensor, layer: int) -> Tensor:
        return F.embedding(state, self.tables[str(layer)].weight)
