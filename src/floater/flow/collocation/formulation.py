"""Formulations of dp/dt = h(t, p) as y' = f(t, y): the interface of all, and the choice of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from floater.flow.collocation.preactivation_form import PreactivationForm, layers_of
from floater.flow.collocation.state_form import StateForm
from floater.flow.dynamics import Dynamics
from floater.flow.precision import wide_dtype
from floater.flow.vector_fields import FieldLinear, MLPField, ScaledField


class Linearization(Protocol):
    """The derivatives of f and of dp/dt at the nodes, transposed; cotangents are (..., N, rows, width)."""

    def vjp(self, intervals: slice, cotangents: Tensor) -> Tensor:
        """Return cotangents of the states in some intervals from those of f there."""

    def velocity_vjp(self, cotangents: Tensor) -> Tensor:
        """Return cotangents of all states from those of dp/dt."""

    def parameter_vjp(self, f_cotangents: Tensor, velocity_cotangents: Tensor) -> Sequence[Tensor]:
        """Return cotangents of `Formulation.parameters` from those of f and of dp/dt."""


class System(Protocol):
    """A system y' = f(t, y) as fixed-point iteration solves it; m is any number of nodes.

    f is split in two because the part that depends on the time alone is integrated once, not in every
    iteration.

    Attributes:
        start: y at the beginning (rows, width), wide.
        dtype: The dtype of the arithmetic.
    """

    start: Tensor
    dtype: torch.dtype

    def time_term(self, times: Tensor) -> Tensor:
        """Return the part of f that depends on the time alone, at m times (m,): (m, width)."""

    def state_term(self, times: Tensor, states: Tensor) -> Tensor:
        """Return the rest of f, at m times (m,) and states (m, rows, width)."""


class Formulation(System, Protocol):
    """The interface of a formulation to a collocation solve: its start is a function of p(0) and parameters.

    Attributes:
        solves_p: Whether y is p.
        implicit: Whether the equations are solved by Newton's method; the formulation is then a wide
            `StateForm`.
        implicit_form: Function from vectors p (rows, dim) to the implicit formulation of the same field.
    """

    solves_p: bool
    implicit: bool
    implicit_form: Callable[[Tensor], StateForm]

    def velocity(self, times: Tensor, states: Tensor) -> Tensor:
        """Return dp/dt (m, rows, dim) at m times and states."""

    def field(self, times: Tensor, p: Tensor) -> Tensor:
        """Return h(t, p) itself at m times and vectors p (m, rows, dim)."""

    def state(self, times: Tensor, p: Tensor) -> Tensor:
        """Return y (m, rows, width) at m times and vectors p (m, rows, dim)."""

    def steepest(self, times: Tensor, states: Tensor) -> Tensor:
        """Return the largest move of a unit between successive states (m, rows, width), over `RESOLVED`."""

    def jumps(self, times: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Bound the changes of f and of dp/dt between successive states that nodes do not resolve.

        Args:
            times: Successive times (m,).
            states: Successive states (m, rows, width).

        Returns:
            Euclidean norms of both changes (m - 1, rows).
        """

    def parameters(self, times: Tensor, states: Tensor) -> Sequence[Tensor]:
        """Return tensors whose graph leads to the parameters of f and dp/dt, at m times and states."""

    def linearize(self, times: Tensor, states: Tensor) -> Linearization:
        """Linearize at all nodes: times (n, N), states (n, N, rows, width); called in the backward pass."""


def rate(form: Formulation, times: Tensor, states: Tensor) -> Tensor:
    """Return f (m, rows, width), both parts of it, at m times and states."""
    return form.state_term(times, states) + form.time_term(times).unsqueeze(1)


def implicit_form(field: nn.Module, start: Tensor) -> StateForm:
    """Return the formulation of a stiff field, for Newton's method."""
    wide = start.to(torch.promote_types(start.dtype, wide_dtype(start.device)))
    form = StateForm(Dynamics(field, wide), wide, implicit=True)
    form.implicit_form = partial(implicit_form, field)
    return form


def formulate(field: nn.Module, start: Tensor, begin: float, rtol: float) -> Formulation:
    """Return the formulation of a field: in preactivations for a plain `MLPField`, else in the vectors.

    Args:
        field: The field.
        start: p at time `begin` (rows, dim).
        begin: The time of the start.
        rtol: The relative tolerance; below eight roundings of float32 the arithmetic is float64.

    Example:
        >>> type(formulate(MLPField(2), torch.zeros(1, 2), 0.0, 1e-6)).__name__
        'PreactivationForm'
    """
    dynamics = Dynamics(field, start)
    dtype = dynamics.dtype
    # The products of a few iterations leave eight roundings; no smaller tolerance can be met.
    if rtol < 8 * torch.finfo(dtype).eps:
        dtype = torch.promote_types(dtype, wide_dtype(start.device))
    start = start.to(dtype)
    form: Formulation
    if plain_mlp(field) is not None:
        form = PreactivationForm(layers_of(field, dtype), start, begin)
    else:
        form = StateForm(Dynamics(field, start), start)
    form.implicit_form = partial(implicit_form, field)
    return form


def plain_mlp(field: nn.Module) -> MLPField | None:
    """Return the `MLPField` of a field, perhaps in another time unit, unless hooks change it."""
    inner = field.field if type(field) is ScaledField else field
    if type(inner) is not MLPField or any(map(_intercepted, field.modules())):
        return None
    plain = all(type(layer) in (nn.Linear, FieldLinear) for layer in (inner.inner, inner.outer))
    return inner if plain else None


def _intercepted(module: nn.Module) -> bool:
    """Return whether a module has hooks or a replaced `forward`."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return any(hooks) or "forward" in module.__dict__
