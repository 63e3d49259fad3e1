"""BERT: a table of learned position vectors (Devlin et al. 2019; Gehring et al. 2017)."""

from __future__ import annotations

from torch import Tensor, nn

from floater.encodings.absolute.added import AddedVectors
from floater.encodings.absolute.tokens import whole_numbers
from floater.encodings.card import Card, SurveyRow
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("learned")
class Learned(AddedVectors):
    """One free vector per position, at the input or one table per block (Liu et al. 2020, section 2.2).

    Bounded: a position past the table is an error, never clipped.

    Args:
        spec: the stack of blocks; max_length is the table size.
        blocks: "input", "all", or a list of block indices; each has a table of its own.

    Example:
        >>> model = Learned(StackSpec(dim=8, heads=2, layers=2, max_length=16), blocks="all")
        >>> sum(parameter.numel() for parameter in model.parameters())
        256
    """

    card = Card(
        paper="Devlin et al. 2019",
        link="https://arxiv.org/abs/1810.04805",
        stacks={"encoder": "BERT", "causal": "GPT-2", "decoder": "translation (Vaswani et al. 2017)"},
        point="absolute",
        models="GPT-2, OPT, ViT",
        equation="x_t + P_t",
        parameters="t_max * d",
        survey=SurveyRow("APE", parameters="t_max * d"),
        exceptions={"real": "a table has nothing between whole positions"},
    )
    bounded = True

    def __init__(self, spec: StackSpec, *, blocks: str | list[int] = "input") -> None:
        super().__init__(spec, blocks)
        self.tables = nn.ModuleDict({str(n): nn.Embedding(spec.max_length, spec.dim) for n in self.blocks})
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in self.blocks:
            self.spec.init_table(self.table(layer).weight)

    def table(self, layer: int) -> nn.Embedding:
        """Return the table of a block."""
        table = self.tables[str(layer)]
        assert isinstance(table, nn.Embedding)
        return table

    def prepare(self, positions: Positions) -> Tensor:
        return whole_numbers(positions, "learned", self.spec.max_length)

    def vectors(self, state: Tensor, layer: int) -> Tensor:
        vectors: Tensor = self.table(layer)(state)
        return vectors
