"""Inputs of the checks: a padded batch, embeddings, and positions with all that an encoding may read."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.encodings import PositionModel
from floater.positions import Positions
from floater.structures import Structure, trees

SIZES = {"dim": 16, "heads": 2, "layers": 2, "max_length": 16, "vocabulary": 11}
"""The stack of blocks that the checks build an encoding for, as arguments of `floater.build`."""

MASK = torch.tensor(
    [[1] * 7, [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [1, 0, 1, 1, 0, 0, 1], [0] * 6 + [1]]
)
"""Five samples of seven columns: unpadded, padded on the left, on the right, in between, and one token."""


def embeddings(*shape: int) -> Tensor:
    """Return the same random numbers for the same shape, (*shape, dim) in double precision.

    Example:
        >>> embeddings(2, 3).shape
        torch.Size([2, 3, 16])
    """
    generator = torch.Generator().manual_seed(2)
    return torch.randn(*shape, SIZES["dim"], generator=generator, dtype=torch.double)


@torch.no_grad()
def randomize_zeros(module: nn.Module) -> None:
    """Draw the parameters that are all zero: an encoding that starts as the identity would hide a mistake.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> _ = nn.init.zeros_(layer.bias)
        >>> randomize_zeros(layer)
        >>> bool(layer.bias.any())
        True
    """
    torch.manual_seed(1)
    for parameter in module.parameters():
        if not bool(parameter.any()):
            nn.init.normal_(parameter, std=0.5)


def mask_positions(
    model: PositionModel | type[PositionModel],
    mask: Tensor,
    samples: Tensor | None = None,
    *,
    queries: int | None = None,
    nodes: int | None = None,
) -> Positions:
    """Return the positions of a mask with all the fields that an encoding may read.

    The fields follow from the position and the number of the sample alone, so that a sample has the same ones
    in every batch and with every padding.

    Args:
        model: the encoding, which may need trees.
        mask: (batch, S), 1 at tokens and 0 at padding.
        samples: (batch,) number of the sample in each row; by default 0, 1, ...
        queries: number of queries, the last columns; by default all.
        nodes: number of nodes of each sample's binary tree; by default its number of tokens.

    Example:
        >>> from floater import catalogue
        >>> mask_positions(catalogue()["alibi"], torch.tensor([[0, 1, 1]])).query.tolist()
        [[0, 0, 1]]
    """
    samples = torch.arange(len(mask)) if samples is None else samples
    structure = None
    if hasattr(model, "needs"):
        sizes = [max(int(row.sum()), 1) if nodes is None else nodes for row in mask]
        structure = trees(
            [[(node - 1) // 2 if node else -1 for node in range(size)] for size in sizes],
            words=[torch.where(row > 0, row.cumsum(0) - 1, -1) for row in mask],
        )
    return with_fields(Positions.from_mask(mask, queries=queries), samples, structure)


def with_fields(positions: Positions, samples: Tensor, structure: Structure | None = None) -> Positions:
    """Return positions with languages, ids of tokens and the other fields that an encoding may read.

    Args:
        positions: positions of the tokens.
        samples: (batch,) number of the sample in each row, which the fields depend on.
        structure: the structure over the keys.

    Example:
        >>> with_fields(Positions.arange(2), torch.tensor([0, 1])).token.tolist()
        [[0, 3], [1, 4]]
    """
    number = samples[:, None]
    query, key = (positions.query.expand(len(samples), -1), positions.key.expand(len(samples), -1))
    return positions.but(
        target_length=9 + samples,
        language=(query + number) % 2,
        reordered=(5 * query + number) % 7,
        structure=structure,
        token=(3 * query + number) % SIZES["vocabulary"],
        segment=(key + number) % 2,
    )
