"""Rotary positions on a grid: axial (Heo et al. 2024), mixed (the same), M-RoPE (Wang et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from floater.encodings.card import Card
from floater.encodings.checks import at_least_one
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.grid.coordinates import coordinates
from floater.encodings.model import QKV, PositionModel, Stage
from floater.encodings.precise import Precise, at_least_float32
from floater.encodings.registry import register
from floater.encodings.relative.rotary import check_pairs, planes, turn
from floater.encodings.relative.waves import frequencies
from floater.encodings.spec import StackSpec
from floater.positions import Positions


class GridRotary(PositionModel):
    """Rotates pairs of queries and keys by angles of their coordinates; subclasses give the angles.

    Args:
        spec: the stack of blocks; head_dim must be even.
        pairs: components that rotate together: "interleaved", 2i and 2i + 1; "half", i and i + head_dim / 2.
        base: base of the frequencies, above 1.
    """

    stage = Stage.ROTATE

    def __init__(self, spec: StackSpec, pairs: str, base: float) -> None:
        super().__init__(spec)
        self.head_dim = check_pairs(spec, pairs, base)
        self.planes = planes(pairs, self.head_dim)
        self.pairs, self.base = pairs, base

    def angles(self, state: Any, layer: int) -> Tensor:
        """Return the angles in a block, (batch or 1, T, heads or 1, head_dim / 2) in float64.

        By default they are the result of `prepare`, for all blocks.
        """
        angles: Tensor = state
        return angles

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[Any]) -> QKV:
        angle, dtype = self.angles(context.state, context.layer), at_least_float32(q.dtype)
        sin, cos = angle.sin().to(dtype), angle.cos().to(dtype)
        return turn(q, sin, cos, self.pairs), turn(k, sin, cos, self.pairs), v


@register("rotary_axial")
class AxialRotary(GridRotary):
    """Rotary positions whose pairs are divided among the axes of a grid (RoPE-Axial, section 3.2).

    Each axis has an equal part of the pairs, one axis after another, and frequencies base^(-j / n) for its n
    pairs. The tokens of a text lie on the diagonal of the grid.

    Args:
        spec: the stack of blocks; head_dim must be a multiple of 2 axes.
        axes: number of axes of the grid, 2 for images, 3 for videos.
        pairs: components that rotate together: "interleaved", 2i and 2i + 1; "half", i and i + head_dim / 2.
        base: base of the frequencies, above 1; 100 in the paper, as grids are shorter than texts.

    Raises:
        PositionError: if an option is not valid; in `prepare`, if the coordinates have other axes.

    Example:
        >>> model = AxialRotary(StackSpec(dim=4, heads=1, layers=1, max_length=16))
        >>> x = torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(1, 4, 1, 4)
        >>> q, _, _ = model.qkv(x, x, x, AttentionContext(model.prepare(Positions.grid(2, 2)), 0))
        >>> q[0, 1, 0]  # row 0, column 1
        tensor([1.0000, 0.0000, 0.5403, 0.8415])
    """

    card = Card(
        paper="Heo et al. 2024",
        link="https://arxiv.org/abs/2403.13298",
        stacks={"encoder": "images"},
        point="relative",
        models="Qwen2-VL (images)",
        equation="rotary, pair j of axis a by c_a / 100^{j / n}, c the coordinates, n pairs for an axis",
        structure="grid",
    )

    def __init__(
        self, spec: StackSpec, *, axes: int = 2, pairs: str = "interleaved", base: float = 100.0
    ) -> None:
        super().__init__(spec, pairs, base)
        at_least_one(axes=axes)
        if self.head_dim % (2 * axes):
            raise PositionError(f"head_dim is {self.head_dim}; {axes} axes need a multiple of {2 * axes}")
        self.axes = axes

    def prepare(self, positions: Positions) -> Tensor:
        query, _ = coordinates(positions, self.axes, "rotary_axial")
        at = frequencies(self.head_dim // self.axes, self.base, query.device)
        return (query.double()[..., None] * at).flatten(-2)[:, :, None]


@register("rotary_mixed")
class MixedRotary(Precise, GridRotary):
    """Rotary positions with a learned direction on the plane for every pair (RoPE-Mixed, section 3.3).

    Pair j of a head of a block turns by w_1 y + w_2 x. The frequencies start with the length base^(-2j / n),
    the first and the second half of the n pairs in directions at right angles, at a random angle for each
    head. The tokens of a text lie on the diagonal of the plane.

    Args:
        spec: the stack of blocks; head_dim must be a multiple of 4.
        pairs: components that rotate together: "interleaved", 2i and 2i + 1; "half", i and i + head_dim / 2.
        base: base of the initial frequencies, above 1.

    Raises:
        PositionError: if an option is not valid; in `prepare`, if the coordinates have other axes than 2.

    Example:
        >>> model = MixedRotary(StackSpec(dim=8, heads=1, layers=3, max_length=16))
        >>> model.frequency.shape, model.frequency.norm(dim=2)[0, 0]
        (torch.Size([3, 1, 2, 4]), tensor([1.0000, 0.3162, 1.0000, 0.3162], grad_fn=<SelectBackward0>))
    """

    card = Card(
        paper="Heo et al. 2024",
        link="https://arxiv.org/abs/2403.13298",
        stacks={"encoder": "images"},
        point="relative",
        models="RoPE-ViT",
        equation="rotary, pair j by w_{j1} y + w_{j2} x, w learned",
        parameters="l * d",
        structure="grid",
    )

    def __init__(self, spec: StackSpec, *, pairs: str = "interleaved", base: float = 10.0) -> None:
        super().__init__(spec, pairs, base)
        if self.head_dim % 4:
            raise PositionError(f"head_dim is {self.head_dim}; 'rotary_mixed' needs a multiple of 4")
        shape = spec.layers, spec.heads, 2, self.head_dim // 2
        self.frequency = nn.Parameter(torch.empty(shape, dtype=at_least_float32()))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        length = frequencies(self.head_dim // 2, self.base, self.frequency.device).repeat(2)
        angle = torch.rand_like(self.frequency[:, :, 0, :1]) * 2 * math.pi
        quarter = torch.arange(2, device=angle.device).repeat_interleave(self.head_dim // 4) * (math.pi / 2)
        direction = torch.stack([(angle + quarter).sin(), (angle + quarter).cos()], 2)
        self.frequency.copy_(length * direction)

    def prepare(self, positions: Positions) -> Tensor:
        return coordinates(positions, 2, "rotary_mixed")[0].double()

    def angles(self, state: Tensor, layer: int) -> Tensor:
        return (state[:, :, None, :, None] * self.frequency[layer].double()).sum(-2)


@register("mrope")
class MRope(GridRotary):
    """Rotary positions of a text whose pairs read time, height and width where there is a grid (M-RoPE).

    The frequencies are those of `rotary`; each pair turns by one of three coordinates. The pairs are in
    three sections, one for each coordinate (Qwen2-VL, section 2.1), or in turn, so that every coordinate has
    fast and slow pairs (Qwen3-VL). On a text, whose tokens have t on every axis, it is `rotary`.

    Args:
        spec: the stack of blocks; head_dim must be even.
        sections: pairs of time, height and width; by default a quarter for time and the rest in halves, which
            are Qwen2-VL's 16, 24 and 24 of 64; interleaved, thirds, with the rest for time.
        interleaved: whether pairs take turns: 1, 4, 7, ... read height and 2, 5, 8, ... width, as many as
            their sections have, and all others time. Sections that do not fit into these turns are refused.
        pairs: components that rotate together: "interleaved", 2i and 2i + 1; "half", i and i + head_dim / 2.
        base: base of the frequencies, above 1.

    Raises:
        PositionError: if an option is not valid; in `prepare`, if the coordinates have other axes than 3.

    Example:
        >>> model = MRope(StackSpec(dim=128, heads=1, layers=1, max_length=16))
        >>> [model.axis_of_pair.count(axis) for axis in range(3)]
        [16, 24, 24]
    """

    card = Card(
        paper="Wang et al. 2024",
        link="https://arxiv.org/abs/2409.12191",
        stacks={"causal": "a language model that reads images and videos"},
        point="relative",
        models="Qwen2-VL, Qwen2.5-VL, Qwen3-VL",
        equation="rotary, pair i by c_{a(i)} / 10000^{2i/d_h}, a(i) one of time, height, width",
        structure="grid",
    )

    def __init__(
        self,
        spec: StackSpec,
        *,
        sections: Sequence[int] | None = None,
        interleaved: bool = False,
        pairs: str = "half",
        base: float = 10000.0,
    ) -> None:
        super().__init__(spec, pairs, base)
        half = self.head_dim // 2
        if sections is None:
            thirds = (half - 2 * (half // 3), half // 3, half // 3)
            quarter = (half // 4, (half - half // 4 + 1) // 2, (half - half // 4) // 2)
            sections = thirds if interleaved else quarter
        if len(sections) != 3 or min(sections) < 0 or sum(sections) != half:
            raise PositionError(
                f"sections is {sections!r}; it must be three numbers that sum to {half} pairs"
            )
        # a list: a tensor made under a loader's meta device would have no data
        if interleaved:
            height, width = (len(range(axis, half, 3)) for axis in (1, 2))
            if sections[1] > height or sections[2] > width:
                raise PositionError(
                    f"sections is {sections!r}; of {half} interleaved pairs height can have at most {height} "
                    f"and width {width}"
                )
            turns = [(pair, pair % 3) for pair in range(half)]
            self.axis_of_pair = [axis if pair < 3 * sections[axis] else 0 for pair, axis in turns]
        else:
            self.axis_of_pair = [axis for axis, size in enumerate(sections) for _ in range(size)]

    def prepare(self, positions: Positions) -> Tensor:
        query, _ = coordinates(positions, 3, "mrope")
        read = torch.stack([query[..., axis] for axis in self.axis_of_pair], -1).double()
        return (read * frequencies(self.head_dim, self.base, query.device))[:, :, None]
