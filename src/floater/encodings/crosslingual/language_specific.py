"""On the Cross-lingual Transferability of Monolingual Representations (Artetxe, Ruder, Yogatama 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.encodings.absolute.added import AddedVectors
from floater.encodings.absolute.tokens import whole_numbers
from floater.encodings.card import Card
from floater.encodings.checks import at_least_one
from floater.encodings.errors import PositionError
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("language_specific")
class LanguageSpecific(AddedVectors):
    """A table of learned positions for each language; a token's language is `Positions.language`.

    Dufter et al. 2022, section 4.5, are the specification. The decoder of an encoder-decoder has one table,
    that of the language that it writes.

    Shapes: table (languages, max_length, dim).

    Bounded: a position past max_length is an error.

    Args:
        languages: number of languages, at least 1.

    Raises:
        PositionError: if an option is not valid, or the positions have no languages or invalid ones.

    Example:
        >>> model = LanguageSpecific(StackSpec(dim=4, heads=1, layers=1, max_length=8), languages=3)
        >>> model.table.shape
        torch.Size([3, 8, 4])
    """

    card = Card(
        paper="Artetxe et al. 2020",
        link="https://arxiv.org/abs/1910.11856",
        stacks={"encoder": "BERT"},
        point="absolute",
        equation="x_t + P^{language of t}_t",
        parameters="languages * t_max * d",
        exceptions={"real": "a table has nothing between whole positions"},
    )
    bounded = True

    def __init__(self, spec: StackSpec, *, languages: int = 2) -> None:
        super().__init__(spec)
        at_least_one(languages=languages)
        tables = 1 if spec.site == "decoder" else languages
        self.table = nn.Parameter(torch.empty(tables, spec.max_length, spec.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.spec.init_table(self.table)

    def prepare(self, positions: Positions) -> Tensor:
        query = whole_numbers(positions, "language_specific", self.spec.max_length)
        if self.spec.site == "decoder":
            return self.table[0, query]
        language = positions.language
        if language is None:
            raise PositionError("no language in the positions; 'language_specific' has one table for each")
        languages = len(self.table)
        low, high = torch.stack(language.aminmax()).tolist() if language.numel() else (0, 0)
        if not 0 <= low <= high < languages:
            raise PositionError(f"languages are 0 to {languages - 1}; got {low} to {high}")
        vectors: Tensor = self.table[language, query]
        return vectors
