"""Base class of position models over trees and graphs, and their shared operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from floater.encodings.card import Contract
from floater.encodings.errors import PositionError
from floater.encodings.model import PositionModel
from floater.encodings.registry import name_of
from floater.encodings.spec import Site
from floater.positions import Positions
from floater.structures import Structure
from floater.structures.graph_features import path_symbols, symbols

_ALL_TOKENS = "it reads a tree or a graph over all tokens at once"
WHOLE: Mapping[Contract, str] = {"cache": _ALL_TOKENS, "documents": _ALL_TOKENS}
"""The exceptions (see `Card`) of encodings that read a tree or a graph."""


class Structured(PositionModel):
    """A position model that reads a tree or a graph over all tokens at once.

    Cached decoding is not defined for it, and the decoder of an encoder-decoder has no structure: there it is
    the identity.

    Class attributes: `needs` is the builder of the `Positions` that it reads; a tree is a graph, too.
    """

    needs: ClassVar[Literal["tree", "graph"]]
    sites: ClassVar[tuple[Site, ...]] = ("self",)
    derives_positions = True

    def structure(self, positions: Positions) -> Structure:
        """Return the structure of the positions.

        Raises:
            PositionError: if the positions have no structure, only a graph where a tree is needed, fewer
                queries than keys, or packed documents.
        """
        structure, name = positions.structure, f"'{name_of(self)}'"
        builder = "Positions.tree(parents)" if self.needs == "tree" else "Positions.graph(edges)"
        if structure is None or (self.needs == "tree" and structure.parents is None):
            raise PositionError(
                f"{name} reads a {self.needs}, and there is none: build the positions with {builder}"
            )
        if positions.query.shape[1] != positions.key.shape[1]:
            raise PositionError(
                f"{name} reads a {self.needs} over all tokens: it has no cached decoding "
                f"({positions.query.shape[1]} queries, {positions.key.shape[1]} keys)"
            )
        if positions.document is not None:
            raise PositionError(
                f"{name} reads a {self.needs} over all tokens, not within packed documents: give it one "
                "document a row"
            )
        return structure


class PairVectors(NamedTuple):
    """Vectors (batch, U, dim) of each sample, and the index of each pair's vector, (batch, T, T)."""

    vectors: Tensor
    pair: Tensor

    def heads(self, weight: Tensor, heads: int) -> Tensor:
        """Return the vectors times a matrix (dim, width), (batch, heads, U, width / heads)."""
        table = self.vectors @ weight
        return table.view(*table.shape[:-1], heads, -1).transpose(1, 2)


class Paths:
    """The distinct label sequences on shortest paths between the tokens of a batch.

    Symbols count from 0: 2 k along an edge with label k, 2 k + 1 against it, then one for the empty path from
    a node to itself, and one for no path.

    Args:
        structure: the graphs.
        labels: number of edge labels.
        name: name of the model, for error messages.

    Attributes:
        rows: (R, D) symbols of the distinct sequences of the batch, padded with 0. The first row is the empty
            path, the last one stands for no path.
        lengths: (R,) number of symbols of each row, at least 1.
        sample_rows: (batch, U) indices of the rows that occur in each sample.
        pair: (batch, T, T) index into `sample_rows` of the path from a query's node to a key's.

    Raises:
        PositionError: if an edge has a label that the model does not have.
    """

    def __init__(self, structure: Structure, labels: int, name: str) -> None:
        device, structure = structure.edges.device, structure.on_cpu
        if structure.edges.numel() and int(structure.edges.max()) > labels:
            raise PositionError(
                f"'{name}' has labels 0 to {labels - 1} (option labels); an edge has label "
                f"{int(structure.edges.max()) - 1}"
            )
        rows, pair = path_symbols(symbols(structure.edges))
        rows = F.pad(rows, (0, 0 if rows.shape[1] else 1, 0, 1))
        rows[0, 0], rows[-1, 0] = 2 * labels + 1, 2 * labels + 2  # one more, as symbols of edges
        pair = pair.remainder(len(rows))  # no path is the last row
        self.lengths = (rows > 0).sum(-1).to(device)
        self.rows = (rows - 1).clamp(min=0).to(device)
        distinct = [torch.unique(sample, return_inverse=True) for sample in pair]
        self.sample_rows = pad_sequence([numbers for numbers, _ in distinct], batch_first=True).to(device)
        self.pair = structure.between(torch.stack([index for _, index in distinct])).to(device)

    @property
    def valid(self) -> Tensor:
        """Return (R, D) bool, False past the end of a sequence."""
        index = torch.arange(self.rows.shape[1], device=self.rows.device)
        ended: Tensor = index >= self.lengths[:, None]
        return ~ended


def scores(q: Tensor, table: Tensor, pair: Tensor) -> Tensor:
    """Return q_t . table[pair_ts] of each head, without a vector for each head and pair.

    Args:
        q: (batch, heads, T, head_dim).
        table: (batch or 1, heads or 1, U, head_dim).
        pair: (batch or 1, T, S) integers below U.

    Returns:
        (batch, heads, T, S).

    Example:
        >>> scores(torch.ones(1, 2, 1, 3), torch.ones(1, 1, 1, 3), torch.tensor([[[0, 0]]])).tolist()
        [[[[3.0, 3.0]], [[3.0, 3.0]]]]
    """
    batch, heads, length, _ = q.shape
    return (q @ table.transpose(-1, -2)).gather(
        -1, pair[:, None].expand(batch, heads, length, pair.shape[-1])
    )


def mixture(weights: Tensor, table: Tensor, pair: Tensor) -> Tensor:
    """Return sum_s weights_ts table[pair_ts] of each head, without a vector for each head and pair.

    Args:
        weights: (batch, heads, T, S).
        table: (batch or 1, heads or 1, U, head_dim).
        pair: (batch or 1, T, S) integers below U.

    Returns:
        (batch, heads, T, head_dim).

    Example:
        >>> mixture(torch.ones(1, 2, 1, 2), torch.ones(1, 1, 1, 3), torch.tensor([[[0, 0]]])).tolist()
        [[[[2.0, 2.0, 2.0]], [[2.0, 2.0, 2.0]]]]
    """
    summed = weights.new_zeros(*weights.shape[:-1], table.shape[-2])
    summed = summed.scatter_add(-1, pair[:, None].expand_as(weights), weights)
    return summed @ table.to(weights.dtype)
