"""Convolutions and Self-Attention: Re-interpreting Relative Positions in Pre-trained Language Models (Chang
et al. 2021): composite attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from floater.encodings.absolute.tokens import whole_numbers
from floater.encodings.card import Card
from floater.encodings.checks import at_least_one
from floater.encodings.context import AttentionContext
from floater.encodings.model import PositionModel
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.positions import Positions


@register("chang")
class Chang(PositionModel):
    """A fixed and a dynamic lightweight convolution inside of attention.

    A number for each distance and head (the fixed one, as in T5) and the product of the query with a vector
    for each distance, shared by the heads of a block (the dynamic one, as in Shaw et al. 2018). Section 3 of
    the paper; Dufter et al. 2022, section 4.1.2, say only that both are combined. As in the released program
    the numbers are not scaled and start at zero, the vectors start uniform within (2 window + 1)^-1/2, and
    distances are clipped to the window. With `keys` the product of the key with a vector of t - s is added,
    in the reversed order of the released program; as the vectors are free, the order only matters for copied
    weights.

    Shapes: fixed (layers, heads, 2 window + 1); query (layers, head_dim, 2 window + 1), and key the same.
    Column window + d is of keys d positions after the query, in `key` of queries d positions after the key.

    Args:
        window: the distance to which larger ones are clipped, at least 1.
        keys: add the product of the key with vectors of its own.

    Raises:
        PositionError: if window is below 1, or positions are real.

    Example:
        >>> model = Chang(StackSpec(dim=4, heads=2, layers=1, max_length=16), window=2)
        >>> q = torch.randn(1, 2, 3, 2)
        >>> model.bias(q, q, AttentionContext(model.prepare(Positions.arange(3)), 0)).shape
        torch.Size([1, 2, 3, 3])
    """

    card = Card(
        paper="Chang et al. 2021",
        link="https://arxiv.org/abs/2106.05505",
        stacks={"encoder": "BERT"},
        point="relative",
        equation="A_{ts} = q_t . (k_s + r_{s-t}) / sqrt(d_h) + b_{s-t}, s - t clipped to the window",
        parameters="l * (2 * window + 1) * (h + d // h)",
        exceptions={
            "real": "a table has nothing between whole distances",
            "rows": "rows of later keys are never read in a causal stack",
        },
    )
    half_read: ClassVar[Mapping[str, int]] = {"fixed": -1, "query": -1, "key": -1}

    def __init__(self, spec: StackSpec, *, window: int = 8, keys: bool = False) -> None:
        super().__init__(spec)
        at_least_one(window=window)
        self.window = window
        columns = 2 * window + 1
        self.fixed = nn.Parameter(torch.empty(spec.layers, spec.heads, columns))
        shape = spec.layers, spec.dim // spec.heads, columns
        self.query = nn.Parameter(torch.empty(shape))
        self.key = nn.Parameter(torch.empty(shape)) if keys else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.fixed)
        for table in (self.query, self.key):
            if table is not None:
                for block in table:
                    nn.init.kaiming_uniform_(block, a=5**0.5)

    def prepare(self, positions: Positions) -> Tensor:
        whole_numbers(positions, "chang")
        return positions.delta.clamp(-self.window, self.window) + self.window

    def bias(self, q: Tensor, k: Tensor, context: AttentionContext[Tensor]) -> Tensor:
        state, layer = context.state, context.layer
        column = state[:, None].expand(q.shape[0], q.shape[1], -1, -1)
        scale = self.scale(q.shape[-1])
        dynamic = (q @ self.query[layer] * scale).gather(-1, column)
        if self.key is not None:
            mirrored = 2 * self.window - column
            key_dots = (k @ self.key[layer] * scale).gather(-1, mirrored.transpose(-1, -2))
            dynamic = dynamic + key_dots.transpose(-1, -2)
        return dynamic + self.fixed[layer][:, state].transpose(0, 1)
