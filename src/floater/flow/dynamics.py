"""A vector field as a solver evaluates it: inputs and parameters in one precision, whatever the state's."""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock

import torch
from torch import Tensor, nn
from torch.func import functional_call

from floater.flow.errors import FlowTransformError
from floater.flow.precision import full_precision
from floater.flow.units import Arguments

_swap = RLock()
"""Held while `functional_call` has put tensors into a module, which the threads of a process share, and while
a module is read or called as it is."""


class FieldError(ValueError):
    """Error of a field that does not return a velocity for each row."""


class Dynamics:
    """A field whose arithmetic has a precision of its own.

    The precision is the widest of float32, the start's and the parameters': models in half precision are
    solved in float32, as a solver subtracts nearby values, which takes digits.

    Args:
        field: A module with `forward(t, p)`.
        start: The initial state (rows, dim).

    Attributes:
        dtype: The dtype of the arithmetic.
        out_dtype: The dtype of solutions: float64 for a float64 start, else float32.
        tensors: Parameters and buffers in that dtype, by name, as they were when the solve began.
    """

    def __init__(self, field: nn.Module, start: Tensor) -> None:
        tensors = {name: x for name, x in _named_tensors(field).items() if x.is_floating_point()}
        self.out_dtype = dtype = torch.promote_types(torch.float32, start.dtype)
        for tensor in tensors.values():
            dtype = torch.promote_types(dtype, tensor.dtype)
        self.field, self.dtype = field, dtype
        self.tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        self.bind()

    def bind(self) -> None:
        """Make sure that the field is evaluated with `tensors`; call this again in a backward pass.

        There the module may hold others, as after `torch.func.functional_call`. Where it holds these very
        tensors, a plain call of the module takes less time.
        """
        current = _named_tensors(self.field)
        self._plain = all(current.get(name) is tensor for name, tensor in self.tensors.items())

    def arguments(self, t: Tensor, p: Tensor) -> Sequence[Tensor]:
        """Return the arguments of the field's units at time t and vectors p (rows, dim), layer by layer."""
        with full_precision(p.device), _swap:
            arguments: Sequence[Tensor] = functional_call(
                Arguments(self.field),
                {f"field.{name}": tensor for name, tensor in self.tensors.items()},
                (t.to(self.dtype), p.to(self.dtype)),
            )
        return arguments

    def velocity(self, t: Tensor, p: Tensor) -> Tensor:
        """Return dp/dt (rows, dim) at time t, in the dtype of the state p (rows, dim)."""
        arguments = (t.to(self.dtype), p.to(self.dtype))
        with full_precision(p.device), _swap:
            if self._plain:
                h = self.field(*arguments)
            else:
                h = functional_call(self.field, self.tensors, arguments)
        if not isinstance(h, Tensor) or h.shape != p.shape:
            returned = tuple(h.shape) if isinstance(h, Tensor) else type(h).__name__
            raise FieldError(f"the field must return a tensor (rows, dim) = {tuple(p.shape)}, got {returned}")
        velocity: Tensor = h.to(p.dtype)
        return velocity


def check_module(field: object) -> None:
    """Check that a field is a module.

    Raises:
        TypeError: if it is not.

    Example:
        >>> check_module(lambda t, p: -p)
        Traceback (most recent call last):
        TypeError: the field must be a torch.nn.Module with forward(t, p), got function
    """
    if not isinstance(field, nn.Module):
        name = type(field).__name__
        raise TypeError(f"the field must be a torch.nn.Module with forward(t, p), got {name}")


def check_problem(field: nn.Module, start: Tensor) -> None:
    """Check that a field is a module, and that it can be solved from a start.

    Raises:
        TypeError: if the field is not a module, or the start is not a tensor.
        ValueError: if the start is not a real tensor (rows, dim) with at least one row, or not as wide as the
            field.
        FlowTransformError: under `torch.vmap` or a transform of `torch.func`.

    Example:
        >>> check_problem(nn.Identity(), torch.ones(2))
        Traceback (most recent call last):
        ValueError: start must be a real tensor (rows, dim) and not empty, got torch.float32 of shape (2,)
    """
    check_module(field)
    if torch._C._are_functorch_transforms_active():
        raise FlowTransformError
    if not isinstance(start, Tensor):
        raise TypeError(f"start must be a tensor (rows, dim), got {type(start).__name__}")
    if start.dim() != 2 or start.numel() == 0 or not start.is_floating_point():
        raise ValueError(
            f"start must be a real tensor (rows, dim) and not empty, got {start.dtype} of shape "
            f"{tuple(start.shape)}"
        )
    dim = getattr(field, "dim", None)
    if isinstance(dim, int) and dim != start.shape[1]:
        raise ValueError(f"start is {start.shape[1]} wide, but the field's vectors are {dim} wide")


def _named_tensors(field: nn.Module) -> dict[str, Tensor]:
    with _swap:
        return dict(field.named_parameters()) | dict(field.named_buffers())
