"""Work that PyTorch's modes and checkpoints around it do not see."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

P = ParamSpec("P")
T = TypeVar("T")


def outside_inference_mode(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function of tensors compute derivatives of its own where the caller is in inference mode.

    It runs without gradients there, and its tensors are ordinary ones.

    Example:
        >>> @outside_inference_mode
        ... def slope(x):
        ...     with torch.enable_grad():
        ...         x = x.detach().requires_grad_()
        ...         return torch.autograd.grad(x.square(), x)[0]
        >>> with torch.inference_mode():
        ...     slope(torch.tensor(3.0))
        tensor(6.)
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            named: dict[str, Any] = {name: _ordinary(value) for name, value in kwargs.items()}
            return function(*map(_ordinary, args), **named)

    return call


def in_transform() -> bool:
    """Return whether a transform of `torch.func`, such as `vmap`, is active; compiled code cannot ask.

    Example:
        >>> in_transform()
        False
    """
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def unseen_by_checkpoints() -> saved_tensors_hooks:
    """Return a context whose saved tensors a gradient checkpoint around it does not count.

    A checkpoint runs its block again and fails if another number of tensors is saved then, as where the
    first run alone computes a value that is kept.

    Raises:
        RuntimeError: when it is entered within a transform of `torch.func`, which has no checkpoints.
    """
    return saved_tensors_hooks(_same, _same)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _ordinary(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value
