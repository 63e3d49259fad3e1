"""The description of a position model in the catalogue: source, equation, row in the survey's table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from floater.encodings.bibliography import Reference, lookup, read

Point = Literal["none", "absolute", "relative", "both"]
Injection = Literal["-", "APE", "MAM", "both"]
Structure = Literal["sequence", "tree", "graph", "grid"]
Stack = Literal["encoder", "causal", "decoder", "cross"]
Contract = Literal["shift", "real", "cache", "documents", "causal", "gradients", "rows", "compile"]
CONTRACT: Mapping[Contract, str] = {
    "shift": "a shift of all positions changes attention, unless the reference point is relative",
    "real": "positions may be real numbers",
    "cache": "decoding with a cache gives the outputs of the whole text",
    "documents": "documents packed into a row have the same outputs as alone",
    "causal": "in a language model no token sees a later one",
    "gradients": "every parameter learns",
    "rows": "in a causal stack every row of a table learns",
    "compile": "the hooks in the blocks compile to one graph",
}


@dataclass(frozen=True)
class SurveyRow:
    """A row of Table 1 of Dufter, Schmitt, Schuetze, "Position Information in Transformers" (2022).

    Args:
        injection: "APE", added to embeddings; "MAM", the attention matrix is modified; "both"; "-" neither.
        parameters: number of parameters, in the survey's letters.
        learnable: whether it has parameters.
        recurring: whether it acts in every block.
        unbound: whether it supports texts longer than those of training.
        differs: reasons why a measured property differs from the survey's, by the name of its column.
    """

    injection: Injection
    parameters: str
    learnable: bool = True
    recurring: bool = False
    unbound: bool = False
    differs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Card:
    """A catalogue entry: the properties that cannot be measured from the code.

    Args:
        paper: authors and year.
        link: address of the paper.
        point: the reference point of positions.
        equation: the model in one line of plain text, in the letters of the paper.
        parameters: number of parameters for one stack of blocks with default options: an arithmetic
            expression in d (dim), h (heads), l (layers), t_max (max_length) and the names of options.
        recipe: name of the recipe (`floater.transformer.RECIPES`) of a Transformer around it by default:
            initialisation, scales, norms and head.
        models: released models that use it, if there are any.
        survey: the row of the survey's Table 1, if it has one.
        exceptions: items of `CONTRACT` that it does not keep, with the reasons.
        stacks: what the paper's models with it do or are, by the kind of stack that has it: "encoder",
            "causal" (a language model), "decoder" (of an encoder-decoder), "cross" (cross-attention). Empty
            if no paper has it; every other stack is an extension of this library.
        structure: structure of the data whose positions it encodes.
        also: addresses of other papers that it builds on.
        bibtex: BibTeX entries of its papers, one field to a line, for an encoding outside of this library.
        pair_matrix: why attention stores a bias that depends on positions alone as a matrix of all pairs, and
            when if not always; empty if it stores none.
    """

    paper: str
    link: str
    point: Point
    equation: str
    parameters: str = "0"
    recipe: str = "transformer"
    models: str = ""
    survey: SurveyRow | None = None
    exceptions: Mapping[Contract, str] = field(default_factory=dict)
    pair_matrix: str = ""
    stacks: Mapping[Stack, str] = field(default_factory=dict)
    structure: Structure = "sequence"
    also: tuple[str, ...] = ()
    bibtex: str = ""

    @property
    def references(self) -> list[Reference]:
        """Return the papers of the encoding, with title, authors, venue, year, DOI and number on arXiv.

        Raises:
            ValueError: if `bibtex` is not valid.

        Example:
            >>> su, = Card("Su et al. 2021", "https://arxiv.org/abs/2104.09864", "relative", "").references
            >>> su.authors[0], su.year, su.arxiv
            ('Jianlin Su', '2021', '2104.09864')
        """
        if self.bibtex:
            return list(read(self.bibtex).values())
        papers = [lookup(self.link, self.paper), *map(lookup, self.also)]
        return [reference for reference in papers if reference]

    @property
    def published(self) -> str:
        """Return the date of publication: year and month of the preprint on arXiv, else the year.

        Example:
            >>> Card("Su et al. 2021", "https://arxiv.org/abs/2104.09864", "relative", "").published
            '2021-04'
        """
        preprint = re.fullmatch(r"https://arxiv\.org/abs/(\d\d)(\d\d)\.\d+", self.link)
        if preprint:
            return f"20{preprint[1]}-{preprint[2]}"
        return self.year

    @property
    def year(self) -> str:
        """Return the year of the paper; empty if `paper` has none."""
        year = re.search(r"\d{4}", self.paper)
        return year[0] if year else ""
