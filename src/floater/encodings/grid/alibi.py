"""CROMA: attention with linear biases of the distance on a plane (Fuller et al. 2023, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from floater.encodings.card import Card
from floater.encodings.checks import at_least_one
from floater.encodings.grid.coordinates import coordinates
from floater.encodings.precise import at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.alibi import slopes
from floater.encodings.relative.bias import PositionBias
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("alibi_grid")
class GridALiBi(PositionBias):
    """Each head lowers the logits in proportion to the Euclidean distance of two patches (2D-ALiBi).

    The slopes are those of `alibi`. The tokens of a text lie on the diagonal of the grid, where a distance is
    sqrt(axes) times that of the text.

    Args:
        axes: number of axes of the grid, 2 for images, 3 for videos.

    Raises:
        PositionError: if axes is below 1; in `prepare`, if the coordinates have other axes.

    Example:
        >>> model = GridALiBi(StackSpec(dim=8, heads=1, layers=1, max_length=16))
        >>> (model.prepare(Positions.grid(2, 2)) * 256)[0, 0, 0]
        tensor([-0.0000, -1.0000, -1.0000, -1.4142])
    """

    card = Card(
        paper="Fuller et al. 2023",
        link="https://arxiv.org/abs/2311.00566",
        stacks={"encoder": "images", "cross": "radar and optical images"},
        point="relative",
        models="CROMA",
        equation="q_t k_s / sqrt(d_h) - m |c_s - c_t|, m = 2^{-8 i / h}, c the coordinates",
        pair_matrix="the distance of two patches is no function of a difference of positions in the row",
        structure="grid",
        also=("https://arxiv.org/abs/2108.12409",),
    )
    derives_positions = True

    def __init__(self, spec: StackSpec, *, axes: int = 2) -> None:
        super().__init__(spec)
        at_least_one(axes=axes)
        self.axes = axes

    def prepare(self, positions: Positions) -> Tensor:
        query, key = coordinates(positions, self.axes, "alibi_grid")
        dtype = at_least_float32(self.dtype)
        difference = (key[:, None] - query[:, :, None]).to(dtype)
        distance = torch.linalg.vector_norm(difference, dim=-1)  # a root would have no gradient at zero
        bias: Tensor = -distance[:, None] * slopes(self.spec.heads, distance.device).to(dtype)[:, None, None]
        return bias

    def correlation(self, state: Tensor, layer: int) -> Tensor:
        return state  # a matrix, which no kernel computes tile by tile
