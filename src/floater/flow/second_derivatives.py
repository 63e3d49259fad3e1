"""Refusal of second derivatives, where a backward pass cannot be differentiated again."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from floater.flow.errors import SecondDerivativeError

Backward = Callable[..., tuple[Any, ...]]
DISCRETE = "method='dopri5' or 'rk4' with gradient='discrete'"
"""The solves that have second derivatives."""


def refuse_second_derivatives(what: str, instead: str) -> Callable[[Backward], Backward]:
    """Decorate the `backward` of an autograd function whose gradients must not be differentiated.

    PyTorch's `once_differentiable` raises only if cotangents require gradients and the derivative is taken
    of all leaves. For a loss that is linear in the output, and in `torch.autograd.grad`, which leaves out
    what does not lead to its inputs, the second derivative would lack this function's part, without an error.
    Here the graph of gradients with `create_graph=True` leads back to all tensors that the function saved, so
    that differentiating them raises an error.

    Args:
        what: What the function computes, for the message.
        instead: What has second derivatives.

    Returns:
        The decorator; `ctx.saved_tensors` must have all tensors that the gradients depend on.

    Raises:
        SecondDerivativeError: from the gradients returned, when they are differentiated.

    Example:
        >>> class Double(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return 2 * x
        ...     @staticmethod
        ...     @refuse_second_derivatives("Double", "2 * x")
        ...     def backward(ctx, cotangent):
        ...         return (2 * cotangent,)
        >>> x = torch.ones((), requires_grad=True)
        >>> (gradient,) = torch.autograd.grad(Double.apply(x) + x**2, x, create_graph=True)
        >>> gradient.backward()
        Traceback (most recent call last):
        floater.flow.errors.SecondDerivativeError: Double has no second derivatives; use 2 * x
    """

    def decorate(backward: Backward) -> Backward:
        @wraps(backward)
        def once(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
            saved = _Saved(ctx)
            with torch.no_grad():
                gradients = backward(saved, *cotangents)
            if not torch.is_grad_enabled():  # create_graph=False
                return gradients
            defined = [gradient for gradient in gradients if gradient is not None]
            tied = iter(
                _Refuse.apply((what, instead), len(defined), *defined, *saved.saved_tensors, *cotangents)  # type: ignore[no-untyped-call]
            )
            return tuple(None if gradient is None else next(tied) for gradient in gradients)

        return once

    return decorate


class _Saved:
    """A context whose saved tensors are read once: a gradient checkpoint gives them no second time."""

    def __init__(self, ctx: Any) -> None:
        self.ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)


class _Refuse(torch.autograd.Function):
    """The identity of the first tensors, whose graph leads to the others, too."""

    @staticmethod
    def forward(ctx: Any, message: tuple[str, str], count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.message = message
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise SecondDerivativeError(*ctx.message)
