"""Refusal of second derivatives, where a backward pass cannot be differentiated again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from floater.flow.errors import SecondDerivativeError
from floater.flow.precision import full_precision

Backward = Callable[..., tuple[Any, ...]]


def refuse_second_derivatives(backward: Backward) -> Backward:
    """Decorate the `backward` of an autograd function whose gradients must not be differentiated.

    The backward pass runs in full precision, like the solve itself.

    PyTorch's `once_differentiable` raises only if cotangents require gradients. For a loss that is linear in
    the output they do not, and the second derivative of the rest of the loss would lack this function's part,
    without an error. Here the graph of gradients with `create_graph=True` leads back to all tensors that the
    function saved, so that differentiating them raises an error.

    Args:
        backward: The function; `ctx.saved_tensors` must have all tensors that its gradients depend on.

    Raises:
        SecondDerivativeError: from the gradients returned, when they are differentiated.

    Example:
        >>> class Double(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return 2 * x
        ...     @staticmethod
        ...     @refuse_second_derivatives
        ...     def backward(ctx, cotangent):
        ...         return (2 * cotangent,)
        >>> x = torch.ones((), requires_grad=True)
        >>> (gradient,) = torch.autograd.grad(Double.apply(x) + x**2, x, create_graph=True)
        >>> gradient.backward()
        Traceback (most recent call last):
        floater.flow.errors.SecondDerivativeError: collocation has no second derivatives; ...
    """

    def once(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        # The backward pass may run under autocast, whose precision is below the tolerance.
        with torch.no_grad(), full_precision(cotangents[0].device):
            gradients = backward(ctx, *cotangents)
        if not torch.is_grad_enabled():  # create_graph=False
            return gradients
        defined = [gradient for gradient in gradients if gradient is not None]
        tied = iter(_Refuse.apply(len(defined), *defined, *ctx.saved_tensors, *cotangents))  # type: ignore[no-untyped-call]
        return tuple(None if gradient is None else next(tied) for gradient in gradients)

    return once


class _Refuse(torch.autograd.Function):
    """The identity of the first tensors, whose graph leads to the others, too."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise SecondDerivativeError
