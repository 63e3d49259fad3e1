"""Vectors of coordinates that are added to patches: sinusoids, tables, flows."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn

from floater.encodings.absolute.added import AddedVectors
from floater.encodings.absolute.floater import learned_field, solved
from floater.encodings.absolute.tokens import query_ends
from floater.encodings.baked import BakedFlow, baked
from floater.encodings.card import Card
from floater.encodings.checks import at_least_one
from floater.encodings.errors import PositionError
from floater.encodings.grid.coordinates import coordinates
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.flow import FlowEncoder, FlowVectors, MLPField, init_small_, sinusoid
from floater.positions import Positions


@register("sinusoidal_grid")
class GridSinusoidal(AddedVectors):
    """Sinusoids of each coordinate in a part of the components (MAE, appendix A.1).

    Every axis has an equal part of the components, one axis after another, with the sines and cosines of
    `sinusoidal` for that width. The tokens of a text lie on the diagonal of the grid.

    Args:
        spec: the stack of blocks; dim must be a multiple of 2 axes.
        axes: number of axes of the grid, 2 for images, 3 for videos.
        blocks: "input", "all", or a list of block indices.

    Raises:
        PositionError: if an option is not valid; in `prepare`, if the coordinates have other axes.

    Example:
        >>> model = GridSinusoidal(StackSpec(dim=4, heads=1, layers=1, max_length=16))
        >>> model.embed(torch.zeros(1, 2, 4), model.prepare(Positions.grid(1, 2)))[0, 1]
        tensor([0.0000, 1.0000, 0.8415, 0.5403])
    """

    card = Card(
        paper="He et al. 2022",
        link="https://arxiv.org/abs/2111.06377",
        stacks={"encoder": "images, whose decoder sees all patches too"},
        point="absolute",
        models="ViT-MAE",
        equation="x_t + [sin(c_a w), cos(c_a w)] of every coordinate c_a, in a part of the components",
        structure="grid",
    )

    def __init__(self, spec: StackSpec, *, axes: int = 2, blocks: str | list[int] = "input") -> None:
        super().__init__(spec, blocks)
        at_least_one(axes=axes)
        if spec.dim % (2 * axes):
            raise PositionError(f"dim is {spec.dim}; sinusoids of {axes} axes need a multiple of {2 * axes}")
        self.axes = axes

    def prepare(self, positions: Positions) -> Tensor:
        query, _ = coordinates(positions, self.axes, "sinusoidal_grid")
        return sinusoid(query, self.spec.dim // self.axes, dtype=self.dtype).flatten(-2)


@register("learned_grid")
class GridLearned(AddedVectors):
    """A table of learned vectors for each axis, each in a part of the components, interpolated between
    entries.

    The two-dimensional embedding of ViT (Dosovitskiy et al. 2021, appendix D.4). Real coordinates interpolate
    linearly: `Positions.grid(h, w, like=...)` reads a table at another resolution as bilinear interpolation
    of images does. Bounded: a coordinate past the table is an error. The tokens of a text lie on the
    diagonal.

    Args:
        spec: the stack of blocks; dim must be a multiple of axes, and every table has max_length
            vectors.
        axes: number of axes of the grid, 2 for images, 3 for videos.
        blocks: "input", "all", or a list of block indices, which share the tables.

    Raises:
        PositionError: if an option is not valid; in `prepare`, if the coordinates have other axes or end
            beyond the tables.

    Example:
        >>> model = GridLearned(StackSpec(dim=4, heads=1, layers=1, max_length=16))
        >>> x = model.embed(torch.zeros(1, 1, 4), model.prepare(Positions.times(torch.tensor([[0.5]]))))
        >>> torch.allclose(x[0, 0], (model.table[:, 0] + model.table[:, 1]).flatten() / 2)
        True
    """

    card = Card(
        paper="Dosovitskiy et al. 2021",
        link="https://arxiv.org/abs/2010.11929",
        stacks={"encoder": "images"},
        point="absolute",
        equation="x_t + [e_a(c_a)] of every coordinate c_a, in a part of the components",
        parameters="t_max * d",
        structure="grid",
    )
    bounded = True

    def __init__(self, spec: StackSpec, *, axes: int = 2, blocks: str | list[int] = "input") -> None:
        super().__init__(spec, blocks)
        at_least_one(axes=axes)
        if spec.dim % axes:
            raise PositionError(f"dim is {spec.dim}; tables of {axes} axes need a multiple of {axes}")
        self.axes = axes
        self.table = nn.Parameter(torch.empty(axes, spec.max_length, spec.dim // axes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.spec.init_table(self.table)

    def prepare(self, positions: Positions) -> Tensor:
        query, _ = coordinates(positions, self.axes, "learned_grid")
        if query.numel():
            text = positions.coordinates is None
            low, high = query_ends(positions) if text else torch.stack(query.aminmax()).tolist()
            if low < 0 or high > self.spec.max_length - 1:
                far = low if low < 0 else high
                raise PositionError(
                    f"'learned_grid' reads coordinates from 0 to {self.spec.max_length - 1} "
                    f"(max_length {self.spec.max_length}); got {far:g}"
                )
        return query

    def vectors(self, state: Tensor, layer: int) -> Tensor:
        below = state.floor().clamp(max=max(self.spec.max_length - 2, 0)).long()
        above = (below + 1).clamp(max=self.spec.max_length - 1)
        share = (state - below)[..., None].to(self.table.dtype)
        parts = []
        for axis, table in enumerate(self.table):
            first, second = table[below[..., axis]], table[above[..., axis]]
            parts.append(first + share[..., axis, :] * (second - first))
        return torch.cat(parts, -1)


@register("floater_grid")
class GridFloater(AddedVectors):
    """Vectors of a flow along each axis of a grid, added up: x + p_1(y) + p_2(x).

    Each axis has a field and a start of its own, dp/dt = h(t, p), t = coordinate x delta, as in `floater`
    with injection="add"; a flow has vectors for any grid and between patches. The tokens of a text lie on the
    diagonal. Coordinates must not be negative.

    Args:
        spec: the stack of blocks; max_length x delta is the span over which the vectors start of
            order one.
        axes: number of axes of the grid, 2 for images, 3 for videos.
        blocks: "all", "input", or a list of block indices; each has starts of its own.
        delta: time between neighbouring patches.
        hidden: width of the fields; None means dim.
        solver: a method of `floater.flow.solve`.

    Raises:
        PositionError: if an option is not valid; in `prepare`, if the coordinates have other axes, or one is
            negative or not finite.

    Example:
        >>> model = GridFloater(StackSpec(dim=8, heads=2, layers=1, max_length=16))
        >>> model.embed(torch.zeros(1, 6, 8), model.prepare(Positions.grid(2, 3))).shape
        torch.Size([1, 6, 8])
    """

    card = Card(
        paper="Liu et al. 2020",
        link="https://arxiv.org/abs/2003.09229",
        point="absolute",
        equation="x_t + sum_a p_a(c_a), dp_a/dc = h_a(c, p_a), c the coordinates",
        parameters="axes * (2 * d * (d + 2) + l * d)",
        structure="grid",
    )

    def __init__(
        self,
        spec: StackSpec,
        *,
        axes: int = 2,
        blocks: str | list[int] = "all",
        delta: float = 0.1,
        hidden: int | None = None,
        solver: str = "auto",
    ) -> None:
        super().__init__(spec, blocks)
        at_least_one(axes=axes)
        self.span = spec.max_length * delta
        try:
            self.flows = nn.ModuleList(
                FlowEncoder(
                    learned_field("mlp", spec.dim, hidden, "tanh"),
                    spec.dim,
                    blocks=self.blocks,
                    names=("p",),
                    delta=delta,
                    method=solver,
                )
                for _ in range(axes)
            )
        except ValueError as error:
            raise PositionError(str(error)) from error
        self.reset_parameters()

    def bake(self, length: int) -> None:
        self.flows = baked(self.flows, length)

    def reset_parameters(self) -> None:
        for flow in self.flows:
            if isinstance(flow, BakedFlow):
                continue
            assert isinstance(flow, FlowEncoder) and isinstance(flow.field, MLPField)  # noqa: PT018
            flow.reset_parameters()
            init_small_(flow.field, self.span)

    def prepare(self, positions: Positions) -> list[FlowVectors] | None:
        query, _ = coordinates(positions, len(self.flows), "floater_grid")
        if not query.numel():
            return None
        if positions.coordinates is None:  # a text, whose positions may be known without reading them
            return [
                solved(flow, positions.counted_query, "floater_grid", positions.below) for flow in self.flows
            ]
        query = query if query.requires_grad or torch.compiler.is_compiling() else query.to("cpu")
        return [solved(flow, query[..., axis], "floater_grid") for axis, flow in enumerate(self.flows)]

    def vectors(self, state: list[FlowVectors] | None, layer: int) -> Tensor:
        if state is None:
            return torch.zeros(
                1, 1, self.spec.dim, device=next(chain(self.parameters(), self.buffers())).device
            )
        return torch.stack([flow.at(layer, "p") for flow in state]).sum(0)
