"""LieRE: Lie Rotational Positional Encodings (Ostmeier et al. 2025)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from floater.encodings.card import Card
from floater.encodings.checks import at_least_one
from floater.encodings.context import AttentionContext
from floater.encodings.errors import PositionError
from floater.encodings.grid.coordinates import coordinates
from floater.encodings.model import QKV, Stage
from floater.encodings.precise import Precise, at_least_float32
from floater.encodings.registry import register
from floater.encodings.spec import StackSpec
from floater.flow.autograd import in_transform
from floater.flow.precision import wide_dtype, without_autocast
from floater.positions import Positions


@register("liere")
class LieRE(Precise):
    """Queries and keys are rotated by exp(sum_a c_a A_a), with a learned skew matrix A_a for each axis.

    Unlike rotary positions the rotations of two axes need not commute: attention on a grid then depends on
    more than the difference of two coordinates; along one axis it depends on the distance alone. Coordinates
    are counted in units of the training grid. Each head of a block has its generators, cut into blocks of
    `generator` components; their entries above the diagonal start uniform in (0, 2 pi), as in the released
    code. The tokens of a text lie on the diagonal of the grid, one max_length long.

    Args:
        spec: the stack of blocks; max_length is the length of an axis of the training grid.
        axes: number of axes of the grid, 2 for images, 3 for videos.
        generator: components that a block of a generator rotates, a divisor of head_dim above 1; by default
            all of a head.

    Raises:
        PositionError: if an option is not valid; in `prepare`, if the coordinates have other axes.

    Example:
        >>> model = LieRE(StackSpec(dim=4, heads=2, layers=1, max_length=16))
        >>> _ = nn.init.constant_(model.entries, 16.0)  # a radian for a step along an axis
        >>> x = torch.tensor([1.0, 0.0]).expand(1, 4, 2, 2)
        >>> q, _, _ = model.qkv(x, x, x, AttentionContext(model.prepare(Positions.grid(2, 2)), 0))
        >>> q[0, 3, 0]  # cos 2, -sin 2
        tensor([-0.4161, -0.9093], grad_fn=<SelectBackward0>)
    """

    card = Card(
        paper="Ostmeier et al. 2025",
        link="https://arxiv.org/abs/2406.10322",
        stacks={"encoder": "images, videos"},
        point="relative",
        equation="(exp(sum_a c_a A_a) q_t)^T exp(sum_a c_a A_a) k_s, A_a learned and skew, c the coordinates",
        parameters="l * axes * d * (d // h - 1) // 2",
        structure="grid",
    )

    stage = Stage.ROTATE

    def __init__(self, spec: StackSpec, *, axes: int = 2, generator: int | None = None) -> None:
        super().__init__(spec)
        at_least_one(axes=axes)
        width = spec.dim // spec.heads
        size = width if generator is None else generator
        if size < 2 or width % size:
            raise PositionError(f"generator is {size}; it must be a divisor of head_dim {width} above 1")
        self.axes, self.size = axes, size
        shape = spec.layers, axes, spec.dim // size, size * (size - 1) // 2
        self.entries = nn.Parameter(torch.empty(shape, dtype=at_least_float32()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.entries, 0.0, 2 * math.pi)

    def prepare(self, positions: Positions) -> Tensor:
        query, _ = coordinates(positions, self.axes, "liere")
        return query.double() / self.spec.max_length

    def rotations(self, state: Tensor, layer: int) -> Tensor:
        """Return the rotations of a block, (batch or 1, T, heads, blocks of a head, size, size)."""
        dtype = wide_dtype(state.device)  # squaring the exponential of a far position multiplies its rounding
        row, column = torch.triu_indices(self.size, self.size, 1, device=self.entries.device)
        upper = self.entries.new_zeros(*self.entries.shape[1:3], self.size, self.size, dtype=dtype)
        upper[:, :, row, column] = self.entries[layer].to(dtype)
        skew = (upper - upper.mT).view(self.axes, self.spec.heads, -1, self.size, self.size)
        coordinate = state.to(dtype)[..., None, None, None, None]
        with without_autocast(state):  # a rounded generator is another rotation
            return rotation((coordinate * skew).sum(2))

    def qkv(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext[Tensor]) -> QKV:
        if not q.shape[1]:
            return q, k, v
        rotations = self.rotations(context.state, context.layer).to(at_least_float32(q.dtype))

        def rotate(x: Tensor) -> Tensor:
            parts = x.view(*x.shape[:-1], x.shape[-1] // self.size, self.size, 1).to(rotations.dtype)
            turned: Tensor = rotations @ parts
            return turned.flatten(-3).to(x.dtype)

        return rotate(q), rotate(k), v


def rotation(skew: Tensor) -> Tensor:
    """Return the exponentials of skew matrices (..., size, size).

    Where a CPU takes gradients, by eigenvectors: for the gradient of `torch.linalg.matrix_exp` it would take
    the exponentials of matrices twice as wide.

    Example:
        >>> quarter = rotation(torch.tensor([[0.0, -torch.pi / 2], [torch.pi / 2, 0.0]]))
        >>> torch.allclose(quarter, torch.tensor([[0.0, -1.0], [1.0, 0.0]]), atol=1e-6)
        True
    """
    trained = skew.requires_grad and torch.is_grad_enabled() and skew.device.type == "cpu"
    if trained and not (torch.compiler.is_compiling() or in_transform()):
        exponential: Tensor = _Rotation.apply(skew)  # type: ignore[no-untyped-call]
    else:
        exponential = torch.linalg.matrix_exp(skew)
    return exponential


class _Rotation(torch.autograd.Function):
    """V exp(-i a) V^H, with the eigenvectors V and eigenvalues a of i times a skew matrix.

    The gradient has divided differences of the exponential (Daleckii and Krein 1965), where those of V and a
    would be divided by differences of eigenvalues, which may be equal. Second derivatives are those of
    `torch.linalg.matrix_exp`.
    """

    @staticmethod
    def forward(ctx: Any, skew: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(1j * skew)
        ctx.save_for_backward(values, vectors, skew)
        rotated: Tensor = ((vectors * torch.exp(-1j * values)[..., None, :]) @ vectors.mH).real
        return rotated

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor]:
        values, vectors, skew = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient will be differentiated
            exponential = torch.linalg.matrix_exp(skew)
            return torch.autograd.grad(exponential, (skew,), gradients, create_graph=True)  # type: ignore[return-value]
        row, column = values[..., :, None] / 2, values[..., None, :] / 2
        divided = torch.exp(1j * (row + column)) * torch.sinc((row - column) / torch.pi)
        inner = vectors.mH @ gradients[0].to(vectors.dtype) @ vectors
        return (((vectors @ (inner * divided)) @ vectors.mH).real,)
