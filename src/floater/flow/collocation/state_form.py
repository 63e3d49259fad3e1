"""The formulation of any field in its own variables, the position vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from floater.flow.autograd import unseen_by_checkpoints
from floater.flow.dynamics import Dynamics, FieldError
from floater.flow.precision import wide_dtype
from floater.flow.units import steepest, units_of, unresolved


class StateForm:
    """A `Formulation` with y = p, for any field: autograd takes its derivatives at the nodes.

    Args:
        dynamics: The field.
        start: p at the beginning (rows, dim), in the dtype of the arithmetic.
        implicit: Whether the equations are solved by Newton's method.
    """

    solves_p = True
    implicit_form: Callable[[Tensor], StateForm]

    def __init__(self, dynamics: Dynamics, start: Tensor, implicit: bool = False) -> None:
        self.start, self.dtype = start.to(wide_dtype(start.device)), start.dtype
        self.implicit = implicit
        self._dynamics = dynamics
        self._units = units_of(dynamics.field)
        self._batched = _takes_vmap(dynamics, start.detach())

    def time_term(self, times: Tensor) -> Tensor:
        return times.new_zeros(len(times), self.start.shape[1], dtype=self.dtype)

    def state_term(self, times: Tensor, states: Tensor) -> Tensor:
        (velocity,) = self._at_each(lambda t, p: (self._dynamics.velocity(t, p),), times, states)
        return velocity.contiguous()

    def _at_each(
        self, function: Callable[[Tensor, Tensor], Sequence[Tensor]], times: Tensor, states: Tensor
    ) -> Sequence[Tensor]:
        if self._batched:
            result: Sequence[Tensor] = torch.vmap(function)(times, states)
            return result
        each = [function(t, p) for t, p in zip(times, states, strict=True)]
        return [torch.stack(parts) for parts in zip(*each, strict=True)]

    field = state_term

    def state(self, times: Tensor, p: Tensor) -> Tensor:
        return p

    def steepest(self, times: Tensor, states: Tensor) -> Tensor:
        layers = zip(self._units, self._arguments(times, states), strict=True)
        moves = [steepest(z, layer.activate) for layer, z in layers]
        return torch.stack(moves).amax() if moves else states.new_zeros(())

    def jumps(self, times: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        bound = states.new_zeros(len(states) - 1, states.shape[1])
        for layer, z in zip(self._units, self._arguments(times, states), strict=True):
            bound = bound + unresolved(z, layer.activate) @ layer.columns.to(z.dtype)
        return bound, bound

    def _arguments(self, times: Tensor, states: Tensor) -> Sequence[Tensor]:
        """Return the arguments of the field's units (m, rows, units), layer by layer; none if unknown."""
        if not self._units:
            return ()
        with torch.no_grad():
            return self._at_each(self._dynamics.arguments, times, states)

    def velocity(self, times: Tensor, states: Tensor) -> Tensor:
        return self.state_term(times, states)

    def parameters(self, times: Tensor, states: Tensor) -> Sequence[Tensor]:
        # The velocity itself: its graph leads to whatever the field reads, registered parameters or not.
        return (self.state_term(times, states.detach()),)

    def linearize(self, times: Tensor, states: Tensor) -> LinearizedStates:
        return LinearizedStates(self, times, states)


@contextmanager
def inner_graph() -> Iterator[None]:
    """Record operations for a derivative within a solve, unseen by a checkpoint around it.

    The error measure of a new mesh saves more tensors than the solve that repeats it.
    """
    with torch.enable_grad(), unseen_by_checkpoints():
        yield


class LinearizedStates:
    """A `Linearization`: the graphs of the field, one for each interval, as these converge one by one."""

    def __init__(self, form: StateForm, times: Tensor, states: Tensor) -> None:
        form._dynamics.bind()
        self._graphs: list[tuple[Tensor, Tensor]] = []
        with inner_graph():
            for t, y in zip(times, states, strict=True):
                leaf = y.detach().requires_grad_()
                self._graphs.append((leaf, form.state_term(t, leaf)))

    def vjp(self, intervals: slice, cotangents: Tensor) -> Tensor:
        pairs = zip(self._graphs[intervals], cotangents, strict=True)
        return torch.stack([_vjp(value, leaf, cotangent) for (leaf, value), cotangent in pairs])

    def value(self, interval: int) -> Tensor:
        """Return f at the nodes of an interval (N, rows, width)."""
        return self._graphs[interval][1].detach()

    def jacobian(self, interval: int) -> Tensor:
        """Return df/dy at the nodes of an interval (N, rows, width, width), for rows that are independent."""
        leaf, value = self._graphs[interval]
        identity = torch.eye(leaf.shape[-1], dtype=leaf.dtype, device=leaf.device)
        if not value.requires_grad:
            return leaf.new_zeros(*leaf.shape, leaf.shape[-1])
        rows = [_vjp(value, leaf, unit.expand_as(leaf)) for unit in identity]
        return torch.stack(rows, 2)

    def velocity_vjp(self, cotangents: Tensor) -> Tensor:
        return self.vjp(slice(None), cotangents)

    def parameter_vjp(self, f_cotangents: Tensor, velocity_cotangents: Tensor) -> Sequence[Tensor]:
        return (f_cotangents + velocity_cotangents,)


def _vjp(value: Tensor, leaf: Tensor, cotangent: Tensor) -> Tensor:
    """Return the vector-Jacobian product, zero if the value does not depend on the leaf."""
    if not value.requires_grad:
        return torch.zeros_like(leaf)
    (product,) = torch.autograd.grad(value, leaf, cotangent, retain_graph=True, allow_unused=True)
    return torch.zeros_like(leaf) if product is None else product


def _takes_vmap(dynamics: Dynamics, start: Tensor) -> bool:
    """Return whether the field can be evaluated at many times at once; one that reads its time cannot."""
    try:
        with torch.no_grad():
            torch.vmap(dynamics.velocity)(start.new_zeros(2), start.expand(2, *start.shape))
    except FieldError:
        raise
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return False
    return True
