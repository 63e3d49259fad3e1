"""Stored vectors that replace a flow for inference."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from floater.encodings.errors import PositionError
from floater.flow import FlowEncoder, FlowVectors
from floater.flow.vectors import as_slice


class BakedFlow(nn.Module):
    """Stored vectors of a flow at positions 0, ..., length - 1, which replace it.

    Liu et al. 2020, section 4.4. The vectors are a buffer, saved with the model and not trained.

    Args:
        flow: the flow that it replaces; on the meta device, where weights are still to be loaded, nothing is
            solved.
        length: number of positions.

    Raises:
        FlowError: if the solve fails.

    Example:
        >>> from floater.flow import ZeroField
        >>> baked = BakedFlow(FlowEncoder(ZeroField(), 2, blocks=[0], names=["p"]), 4)
        >>> baked(torch.tensor([[3, 1]])).at(0, "p").shape
        torch.Size([1, 2, 2])
        >>> baked(torch.tensor([[4]]))
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: the flow is baked for positions 0 to 3; 4 was requested: \
bake more, from the model that was saved with its flow
    """

    vectors: Tensor

    @torch.no_grad()
    def __init__(self, flow: FlowEncoder, length: int) -> None:
        super().__init__()
        self.blocks, self.names, self.length = flow.blocks, flow.names, length
        start = flow.start
        self._keys = {key: i for i, key in enumerate((b, n) for b in self.blocks for n in self.names)}
        if start.is_meta:
            vectors = start.new_empty(len(self._keys), length, flow.dim)
        else:
            # in training it may hold the vectors of an earlier step
            solved = flow.eval()(torch.arange(length)[None], below=length)
            vectors = torch.stack([solved.at(*key)[0] for key in self._keys])
        self.register_buffer("vectors", vectors)

    def forward(self, positions: Tensor, *, below: int | None = None) -> FlowVectors:
        """Return the vectors at integer positions; arguments as of `FlowEncoder.forward`.

        Raises:
            PositionError: if a position is not an integer, or not among the stored ones.
        """
        index: Tensor | slice = positions.long()
        if not torch.compiler.is_compiling():
            if below is None or below > self.length:
                check_baked(positions, self.length)
            if positions.device.type == "cpu":  # another device would have to be waited for
                index = as_slice(positions.long())
        elif below is not None:  # compiled code does not look at positions
            torch._check(below <= self.length)  # type: ignore[no-untyped-call]
        else:
            torch._assert_async((positions < self.length).all(), "positions are beyond those baked")
        if isinstance(index, Tensor):
            index = index.to(self.vectors.device)
        return FlowVectors(self.vectors.unbind(0), index, self._keys, self.vectors.dtype)


def baked(flows: nn.ModuleList, length: int) -> nn.ModuleList:
    """Replace flows by their stored vectors; a flow that is already baked is kept."""
    return nn.ModuleList(BakedFlow(flow, length) if isinstance(flow, FlowEncoder) else flow for flow in flows)


def check_baked(positions: Tensor, length: int, what: str = "positions") -> None:
    """Check that a baked flow has the vectors of some positions.

    Args:
        positions: any shape, not empty.
        length: number of positions that it is baked for.
        what: name of the positions, for error messages.

    Raises:
        PositionError: if a position is not an integer from 0 to length - 1.

    Example:
        >>> check_baked(torch.tensor([[0.5]]), 4)
        Traceback (most recent call last):
        floater.encodings.errors.PositionError: the flow is baked for positions 0 to 3; 0.5 was requested: \
bake more, from the model that was saved with its flow
    """
    outside = (positions < 0) | (positions >= length) | (positions != positions.floor())
    if bool(outside.any()):
        asked = float(positions[outside][0])
        raise PositionError(
            f"the flow is baked for {what} 0 to {length - 1}; {asked:g} was requested: bake more, from the "
            "model that was saved with its flow"
        )
