"""Unit quaternions, by which rotations of four components are multiplied along a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from floater.flow.autograd import in_transform

Quaternion = tuple[Tensor, ...]
"""The components of 1, i, j and k."""

_STEPS = 20
"""Steps of a product along a text whose length an exported program does not know: up to 2^20 tokens."""


def product(a: Quaternion, b: Quaternion) -> Quaternion:
    """Return a b.

    Example:
        >>> one, i, j, k = torch.eye(4)
        >>> torch.stack(product(tuple(i), tuple(j))).equal(k)
        True
    """
    a0, a1, a2, a3 = a
    b0, b1, b2, b3 = b
    return (
        a0 * b0 - a1 * b1 - a2 * b2 - a3 * b3,
        a0 * b1 + a1 * b0 + a2 * b3 - a3 * b2,
        a0 * b2 - a1 * b3 + a2 * b0 + a3 * b1,
        a0 * b3 + a1 * b2 - a2 * b1 + a3 * b0,
    )


def conjugate(a: Quaternion) -> Quaternion:
    """Return the quaternion with the opposite vector: the inverse, if it is a unit quaternion."""
    return a[0], -a[1], -a[2], -a[3]


def exponential(vector: Tensor) -> Quaternion:
    """Return exp(x i + y j + z k), a unit quaternion.

    Args:
        vector: (3, ...), x, y and z.

    Example:
        >>> [round(float(part), 6) for part in exponential(torch.tensor([torch.pi / 3, 0.0, 0.0]))]
        [0.5, 0.866025, 0.0, 0.0]
    """
    # the square root has no gradient at 0
    length = (vector.square().sum(0) + torch.finfo(vector.dtype).tiny).sqrt()
    return length.cos(), *(vector * torch.sinc(length / torch.pi)).unbind()


def cumulative(a: Quaternion) -> Quaternion:
    """Return the products a_0 ... a_t of unit quaternions along the last dimension but one.

    Example:
        >>> turns = exponential(torch.tensor([[0.1, 0.2, 0.3], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])[..., None])
        >>> cumulative(turns)[1].asin().flatten()  # of turns about one axis, the sums of the angles
        tensor([0.1000, 0.3000, 0.6000])
    """
    if torch.compiler.is_exporting() or in_transform():
        return _cumulative(a)
    if torch.compiler.is_compiling():
        return tuple(_whole(torch.stack(a)))
    products: Quaternion = _Cumulative.apply(*a)  # type: ignore[no-untyped-call]
    return products


def _cumulative(a: Quaternion) -> Quaternion:
    products = _scan(a)
    norm = sum(part.square() for part in products).rsqrt()  # type: ignore[union-attr]
    return tuple(part * norm for part in products)


def _scan(a: Quaternion) -> Quaternion:
    """Return the products, by those of pairs: about two for each factor in all (Brent and Kung 1982)."""
    length = a[0].shape[-2]
    if isinstance(length, torch.SymInt):
        return _doubled(a, length)
    if length < 2:
        return a
    pairs = product(tuple(part[..., : length - 1 : 2, :] for part in a), _every_second(a, 1))
    to_odd = _scan(pairs)
    to_even = product(tuple(part[..., : (length - 1) // 2, :] for part in to_odd), _every_second(a, 2))
    products = tuple(part.clone() for part in a)
    for out, even, odd in zip(products, to_even, to_odd, strict=True):
        out[..., 1::2, :], out[..., 2::2, :] = odd, even
    return products


def _doubled(a: Quaternion, length: int) -> Quaternion:
    """Return the products of 2, 4, 8, ... factors, in the same steps for any length (Hillis, Steele 1986)."""
    at = torch.arange(length, device=a[0].device)
    for step in range(_STEPS):
        before = at - 2**step
        earlier = product(tuple(part[..., before.clamp(min=0), :] for part in a), a)
        whole = (before >= 0)[:, None]
        a = tuple(torch.where(whole, new, old) for new, old in zip(earlier, a, strict=True))
    return a


def _every_second(a: Quaternion, first: int) -> Quaternion:
    return tuple(part[..., first::2, :] for part in a)


def _gradient(a: Quaternion, c: Quaternion, gradients: Quaternion) -> Quaternion:
    """Return the gradients of factors a from those of their products c.

    A turn exp(e) after a_k turns all later products c_i from the left by exp(n), n = c_k e c_k^-1. So the
    gradient of e is the sum of those of n over i >= k, turned back.
    """
    _, *turns = product(gradients, conjugate(c))
    sums = [turn.flip(-2).cumsum(-2).flip(-2) for turn in turns]
    return product(a, _vector(product(product(conjugate(c), _vector(sums)), c)[1:]))


def _vector(parts: Sequence[Tensor]) -> Quaternion:
    return torch.zeros_like(parts[0]), *parts


class _Cumulative(torch.autograd.Function):
    """Products along a text, whose derivatives need nothing but the products."""

    @staticmethod
    def forward(ctx: Any, *a: Tensor) -> Quaternion:
        c = _cumulative(a)
        ctx.save_for_backward(*a, *c)
        ctx.save_for_forward(*a, *c)
        return c

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Quaternion:
        saved = ctx.saved_tensors  # read once, as a gradient checkpoint requires
        return _gradient(saved[:4], saved[4:], gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Quaternion:
        a, c = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        turns = _vector(product(conjugate(a), tangents)[1:])
        sums = [turn.cumsum(-2) for turn in product(product(c, turns), conjugate(c))[1:]]
        return product(_vector(sums), c)


@torch.library.custom_op("floater::cumulative", mutates_args=())
def _whole(a: Tensor) -> Tensor:
    """Return the products as one operator: traced, each number of steps would be a graph of its own."""
    return torch.stack(_cumulative(a.unbind()))


@_whole.register_fake
def _(a: Tensor) -> Tensor:
    return torch.empty_like(a)


def _keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _differentiate(ctx: Any, gradient: Tensor) -> Tensor:
    a, c = ctx.saved_tensors
    return torch.stack(_gradient(a.unbind(), c.unbind(), gradient.unbind()))


_whole.register_autograd(_differentiate, setup_context=_keep)
