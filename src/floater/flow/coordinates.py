"""The coordinates y in which a field is solved by collocation, y' = f(t, y), and the way back to p."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from floater.flow.field import ACTIVATIONS, MLPField, ScaledField
from floater.flow.stepping import Dynamics, wide_dtype

Pullback = Callable[[slice, Tensor], Tensor]


class Coordinates(Protocol):
    """What a collocation solve asks of the coordinates; m is any number of nodes.

    Attributes:
        start: y at the beginning (rows, width), wide, a function of p(0) and the parameters.
        dtype: The dtype of the arithmetic.
    """

    start: Tensor
    dtype: torch.dtype

    def forcing(self, times: Tensor) -> Tensor:
        """The part of f that depends on the time alone, at m times (m,): (m, width)."""

    def response(self, times: Tensor, states: Tensor) -> Tensor:
        """The rest of f, at m times (m,) and states (m, rows, width)."""

    def transposed(self, times: Tensor, states: Tensor) -> Pullback:
        """The transposed derivative of f in y at all nodes: times (n, N), states (n, N, rows, width).

        Returns:
            A function of a slice of windows and cotangents of f there (k, N, rows, width), which
            gives those of y.
        """

    def parametric(self, times: Tensor, states: Tensor) -> Tensor:
        """A tensor (m, rows, width) with the derivative of f in the parameters, its value left open."""

    def read(self, times: Tensor, states: Tensor) -> Tensor:
        """dp/dt (m, rows, dim) at m times and states; autograd follows."""

    def field(self, times: Tensor, p: Tensor) -> Tensor:
        """h(t, p) itself at m times and vectors p (m, rows, dim)."""


def coordinates(field: nn.Module, start: Tensor, begin: float, rtol: float) -> Coordinates:
    """The best coordinates for a field: preactivations for a plain `MLPField`, else p.

    Args:
        field: The field.
        start: p at time `begin` (rows, dim).
        begin: The time of the start.
        rtol: The relative tolerance; float32 arithmetic holds no less than eight roundings.

    Example:
        >>> type(coordinates(MLPField(2), torch.zeros(1, 2), 0.0, 1e-6)).__name__
        'Preactivations'
    """
    dtype = Dynamics(field, start).dtype
    if rtol < 8 * torch.finfo(dtype).eps:
        dtype = torch.promote_types(dtype, wide_dtype(start.device))
    start = start.to(dtype)
    if plain_mlp(field) is not None:
        return Preactivations(_layers(field, dtype), start, begin)
    return Plain(Dynamics(field, start), start)


def velocity(y: Coordinates, times: Tensor, states: Tensor) -> Tensor:
    """f at m times (m,) and states (m, rows, width)."""
    return y.response(times, states) + y.forcing(times).unsqueeze(1)


def plain_mlp(field: nn.Module) -> MLPField | None:
    """The `MLPField` that a field is, perhaps in another unit of time, if nothing hooks into it."""
    inner = field.field if type(field) is ScaledField else field
    if type(inner) is not MLPField or any(type(x) is not nn.Linear for x in (inner.inner, inner.outer)):
        return None
    hooked = any(m._forward_hooks or m._forward_pre_hooks for m in field.modules())
    return None if hooked else inner


class Layers(NamedTuple):
    """[W1 u1], b1, a, c, [W2 u2] and b2 of h(t, p) = W2 s(W1 p + u1 t + b1) + u2 t + b2, s = a + c."""

    inner: Tensor
    inner_bias: Tensor
    activate: Callable[[Tensor], Tensor]
    shift: float
    outer: Tensor
    outer_bias: Tensor


def _layers(field: nn.Module, dtype: torch.dtype) -> Layers:
    """The layers of a field that `plain_mlp` knows."""
    if isinstance(field, ScaledField):
        weight1, bias1, activate, shift, weight2, bias2 = _layers(field.field, dtype)
        # dp/du = s h(s u, p): each layer's time is scaled, then the velocity.
        scale = field.log_scale.exp().to(dtype)
        time1, time2 = (torch.cat((torch.ones_like(w[0, :-1]), scale.view(1))) for w in (weight1, weight2))
        return Layers(weight1 * time1, bias1, activate, shift, scale * weight2 * time2, scale * bias2)
    assert isinstance(field, MLPField)
    tensors = (field.inner.weight, field.inner.bias, field.outer.weight, field.outer.bias)
    weight1, bias1, weight2, bias2 = (x.to(dtype) for x in tensors)
    if field.activation != "tanh":
        return Layers(weight1, bias1, ACTIVATIONS[field.activation], 0.0, weight2, bias2)
    # tanh x = 2 (sigmoid(2 x) - 1/2); on some CPUs the sigmoid is ten times faster than tanh.
    double = torch.cat((torch.full_like(weight2[0, :-1], 2), weight2.new_ones(1)))
    return Layers(2 * weight1, 2 * bias1, torch.sigmoid, -0.5, weight2 * double, bias2)


class Preactivations:
    """z = W1 p + u1 t + b1 of an `MLPField`: z' = M s(z) + c1 + c2 t with M = W1 W2 formed once.

    One product of an evaluation instead of two, and dp/dt = W2 s(z) + u2 t + b2 at the end. Runge-Kutta
    and collocation methods do not notice an affine change of coordinates, so the solution is the same.

    Args:
        layers: The field.
        start: p at time `begin` (rows, dim), in the dtype of the arithmetic.
        begin: The time of the start.
    """

    def __init__(self, layers: Layers, start: Tensor, begin: float) -> None:
        self._layers, self.dtype = layers, start.dtype
        wide = wide_dtype(start.device)
        time = torch.full((1,), begin, dtype=wide, device=start.device)
        self.start = self._inner(time, start.unsqueeze(0))[0].to(wide)
        # The columns of [W2 u2 b2] go through W1 together.
        product: Tensor = _WideProduct.apply(  # type: ignore[no-untyped-call]
            layers.inner[:, :-1], torch.cat((layers.outer, layers.outer_bias.unsqueeze(1)), dim=1)
        )
        slope, constant = product[:, -2], product[:, -1]
        self._matrix = product[:, :-2].contiguous()
        self._drift = torch.stack((constant + layers.inner[:, -1], slope))

    def forcing(self, times: Tensor) -> Tensor:
        """See `Coordinates`."""
        return _affine(times, self._drift.detach(), self.dtype)

    def response(self, times: Tensor, states: Tensor) -> Tensor:
        """See `Coordinates`."""
        # Left to the forcing, the shift would cost digits: a lies around 1/2, s around 0.
        s = self._layers.activate(states).add_(self._layers.shift)
        return torch.mm(s.flatten(0, 1), self._matrix.detach().T).view_as(states)

    def transposed(self, times: Tensor, states: Tensor) -> Pullback:
        """See `Coordinates`."""
        with torch.enable_grad():
            z = states.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self._layers.activate(z).sum(), z)
        # That of a saturated unit is denormal, or becomes so; see `backward_sweeps`.
        slope = F.hardshrink(slope, torch.finfo(slope.dtype).eps ** 2)
        matrix = self._matrix.detach()
        return lambda windows, f: torch.mm(f.flatten(0, 2), matrix).view_as(f).mul_(slope[windows])

    def parametric(self, times: Tensor, states: Tensor) -> Tensor:
        """See `Coordinates`."""
        s = self._s(states.detach())
        f: Tensor = _Parametric.apply(times, s, self._matrix, self._drift)  # type: ignore[no-untyped-call]
        return f

    def read(self, times: Tensor, states: Tensor) -> Tensor:
        """See `Coordinates`."""
        return self._outer(times, self._s(states))

    def field(self, times: Tensor, p: Tensor) -> Tensor:
        """See `Coordinates`."""
        return self._outer(times, self._s(self._inner(times, p)))

    def _s(self, z: Tensor) -> Tensor:
        return self._layers.activate(z) + self._layers.shift

    def _inner(self, times: Tensor, p: Tensor) -> Tensor:
        return self._linear(self._layers.inner, self._layers.inner_bias, times, p)

    def _outer(self, times: Tensor, s: Tensor) -> Tensor:
        return self._linear(self._layers.outer, self._layers.outer_bias, times, s)

    def _linear(self, weight: Tensor, bias: Tensor, times: Tensor, x: Tensor) -> Tensor:
        """A layer whose last input is the time."""
        affine = _affine(times, torch.stack((bias, weight[:, -1])), self.dtype)
        return F.linear(x, weight[:, :-1]) + affine.unsqueeze(1)


def _affine(times: Tensor, coefficients: Tensor, dtype: torch.dtype) -> Tensor:
    """a + b t for the rows a, b of the coefficients (2, width), at m times: (m, width)."""
    return torch.addcmul(coefficients[:1], coefficients[1:], times.to(dtype).unsqueeze(1))


class _WideProduct(torch.autograd.Function):
    """A B, formed in the wide dtype and then rounded, since many sweeps go through the result."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        wide = torch.promote_types(a.dtype, wide_dtype(a.device))
        return (a.to(wide) @ b.to(wide)).to(a.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        (gradient,) = gradients
        return gradient @ b.T, a.T @ gradient


class _Parametric(torch.autograd.Function):
    """s M^T + c1 + c2 t without its value: backwards, one product over all nodes."""

    @staticmethod
    def forward(ctx: Any, times: Tensor, s: Tensor, matrix: Tensor, drift: Tensor) -> Tensor:
        ctx.save_for_backward(times, s, matrix)
        return s.new_zeros(()).expand_as(s)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[None, None, Tensor, Tensor]:
        times, s, _ = ctx.saved_tensors
        (f,) = cotangents
        powers = torch.stack((torch.ones_like(times), times))
        drift = powers @ f.sum(1, dtype=times.dtype)
        return None, None, torch.mm(f.flatten(0, 1).T, s.flatten(0, 1)), drift.to(s.dtype)


class Plain:
    """p itself, for any field: it is evaluated at every node, its derivative taken by autograd.

    Args:
        dynamics: The field.
        start: p at the beginning (rows, dim), in the dtype of the arithmetic.
    """

    def __init__(self, dynamics: Dynamics, start: Tensor) -> None:
        self.start, self.dtype = start.to(wide_dtype(start.device)), start.dtype
        self._velocity = dynamics.velocity
        self._batched = _takes_vmap(dynamics, start.detach())

    def forcing(self, times: Tensor) -> Tensor:
        """See `Coordinates`."""
        return times.new_zeros(len(times), self.start.shape[1], dtype=self.dtype)

    def response(self, times: Tensor, states: Tensor) -> Tensor:
        """See `Coordinates`."""
        if self._batched:
            return torch.vmap(self._velocity)(times, states).contiguous()
        return torch.stack([self._velocity(t, p) for t, p in zip(times, states, strict=True)])

    read = field = response

    def parametric(self, times: Tensor, states: Tensor) -> Tensor:
        """See `Coordinates`."""
        return self.response(times, states.detach())

    def transposed(self, times: Tensor, states: Tensor) -> Pullback:
        """See `Coordinates`."""
        graphs: list[tuple[Tensor, Tensor]] = []
        with torch.enable_grad():
            for t, y in zip(times, states, strict=True):
                leaf = y.detach().requires_grad_()
                graphs.append((leaf, self.response(t, leaf)))

        def pullback(windows: slice, f: Tensor) -> Tensor:
            pairs = zip(graphs[windows], f, strict=True)
            return torch.stack([_vjp(value, leaf, cotangent) for (leaf, value), cotangent in pairs])

        return pullback


def _vjp(value: Tensor, leaf: Tensor, cotangent: Tensor) -> Tensor:
    """The vector-Jacobian product, zero if the value does not depend on the leaf."""
    if not value.requires_grad:
        return torch.zeros_like(leaf)
    (found,) = torch.autograd.grad(value, leaf, cotangent, retain_graph=True, allow_unused=True)
    return torch.zeros_like(leaf) if found is None else found


def _takes_vmap(dynamics: Dynamics, start: Tensor) -> bool:
    """Whether the field can be evaluated at many times at once; a field that reads its time cannot."""
    try:
        with torch.no_grad():
            torch.vmap(dynamics.velocity)(start.new_zeros(2), start.expand(2, *start.shape))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return False
    return True
