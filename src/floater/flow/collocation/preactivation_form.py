"""The formulation of an `MLPField` in its preactivations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.flow.collocation.state_form import StateForm, inner_graph
from floater.flow.precision import full_precision, wide_dtype
from floater.flow.units import steepest, unresolved
from floater.flow.vector_fields import ACTIVATIONS, MLPField, ScaledField


class Layers(NamedTuple):
    """[W1 u1], b1, a, c, [W2 u2] and b2 of h(t, p) = W2 s(W1 p + u1 t + b1) + u2 t + b2, s = a + c.

    `unit` is the factor of the activation's argument.
    """

    inner: Tensor
    inner_bias: Tensor
    activate: Callable[[Tensor], Tensor]
    shift: float
    outer: Tensor
    outer_bias: Tensor
    unit: float = 1.0


def layers_of(field: nn.Module, dtype: torch.dtype) -> Layers:
    """Return the layers of a field that `formulation.plain_mlp` accepts."""
    if isinstance(field, ScaledField):
        weight1, bias1, activate, shift, weight2, bias2, unit = layers_of(field.field, dtype)
        # dp/du = s h(s u, p): each layer's time is scaled, then the velocity.
        scale = field.log_scale.exp().to(dtype)
        time1, time2 = (torch.cat((torch.ones_like(w[0, :-1]), scale.view(1))) for w in (weight1, weight2))
        weight2, bias2 = scale * weight2 * time2, scale * bias2
        return Layers(weight1 * time1, bias1, activate, shift, weight2, bias2, unit)
    assert isinstance(field, MLPField)
    tensors = (field.inner.weight, field.inner.bias, field.outer.weight, field.outer.bias)
    weight1, bias1, weight2, bias2 = (x.to(dtype) for x in tensors)
    if field.activation != "tanh":
        return Layers(weight1, bias1, ACTIVATIONS[field.activation], 0.0, weight2, bias2)
    # tanh x = 2 (sigmoid(2 x) - 1/2); on some CPUs the sigmoid is ten times faster than tanh.
    double = torch.cat((torch.full_like(weight2[0, :-1], 2), weight2.new_ones(1)))
    return Layers(2 * weight1, 2 * bias1, torch.sigmoid, -0.5, weight2 * double, bias2, 2.0)


class PreactivationForm:
    """A `Formulation` with y = z = W1 p + u1 t + b1 of an `MLPField`.

    z' = M s(z) + c1 + c2 t with M = W1 W2 formed once. An evaluation is one product instead of two, and
    dp/dt = W2 s(z) + u2 t + b2 is computed once, at the end. Collocation is equivariant under affine maps, so
    the discrete solution is the same.

    Args:
        layers: The field.
        start: p at time `begin` (rows, dim), in the dtype of the arithmetic.
        begin: The time of the start.
    """

    solves_p = implicit = False
    implicit_form: Callable[[Tensor], StateForm]

    def __init__(self, layers: Layers, start: Tensor, begin: float) -> None:
        self._layers, self.dtype = layers, start.dtype
        wide = wide_dtype(start.device)
        time = torch.full((1,), begin, dtype=wide, device=start.device)
        self.start = self.state(time, start.unsqueeze(0))[0].to(wide)
        # The columns of [W2 u2 b2] go through W1 together.
        product: Tensor = _WideProduct.apply(  # type: ignore[no-untyped-call]
            layers.inner[:, :-1], torch.cat((layers.outer, layers.outer_bias.unsqueeze(1)), dim=1)
        )
        slope, constant = product[:, -2], product[:, -1]
        self._matrix = product[:, :-2].contiguous()
        self._drift = torch.stack((constant + layers.inner[:, -1], slope))

    def time_term(self, times: Tensor) -> Tensor:
        return _affine(times, self._drift.detach(), self.dtype)

    def state_term(self, times: Tensor, states: Tensor) -> Tensor:
        # As part of the time term the shift would cost digits: a lies around 1/2, s around 0.
        return self.times_matrix(self._layers.activate(states).add_(self._layers.shift))

    def times_matrix(self, s: Tensor) -> Tensor:
        """Return M s for activations (..., width)."""
        return torch.mm(s.flatten(0, -2), self._matrix.detach().T).view_as(s)

    def slopes(self, states: Tensor) -> Tensor:
        """Return s'(z), zero for saturated units, at preactivations of any shape."""
        return _slopes(self._layers, states)[0]

    def velocity(self, times: Tensor, states: Tensor) -> Tensor:
        s = self._layers.activate(states) + self._layers.shift
        return linear(self._layers.outer, self._layers.outer_bias, times, s)

    def field(self, times: Tensor, p: Tensor) -> Tensor:
        return self.velocity(times, self.state(times, p))

    def parameters(self, times: Tensor, states: Tensor) -> Sequence[Tensor]:
        return self._matrix, self._drift, self._layers.outer, self._layers.outer_bias

    def linearize(self, times: Tensor, states: Tensor) -> _LinearizedPreactivations:
        return _LinearizedPreactivations(self._layers, self._matrix.detach(), times, states)

    def state(self, times: Tensor, p: Tensor) -> Tensor:
        return linear(self._layers.inner, self._layers.inner_bias, times, p)

    def steepest(self, times: Tensor, states: Tensor) -> Tensor:
        return steepest(states, self._layers.activate, self._layers.unit)

    def jumps(self, times: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        change = unresolved(states, self._layers.activate, self._layers.unit)
        # Each unit moves the velocity along its own column; together they move it by no more than the sum.
        outer = self._layers.outer.detach()[:, :-1]
        return change @ self._matrix.detach().norm(dim=0), change @ outer.norm(dim=0)


class _LinearizedPreactivations:
    """A `Linearization`: products with the transposed matrices M and W2, and with s'(z)."""

    def __init__(self, layers: Layers, matrix: Tensor, times: Tensor, states: Tensor) -> None:
        self._slope, a = _slopes(layers, states)
        self._s = a + layers.shift
        self._matrix, self._outer, self._times = matrix, layers.outer.detach()[:, :-1], times.flatten()

    def vjp(self, intervals: slice, cotangents: Tensor) -> Tensor:
        back = torch.mm(cotangents.flatten(0, 2), self._matrix).view_as(cotangents)
        return back.mul_(self._slope[intervals])

    def velocity_vjp(self, cotangents: Tensor) -> Tensor:
        back = torch.mm(cotangents.flatten(0, 2), self._outer).view_as(self._slope)
        return back.mul_(self._slope)

    def parameter_vjp(self, f_cotangents: Tensor, velocity_cotangents: Tensor) -> Sequence[Tensor]:
        powers = torch.stack((torch.ones_like(self._times), self._times))
        s = self._s.flatten(0, 2)

        def linear(cotangents: Tensor) -> tuple[Tensor, Tensor]:
            """Return the cotangents of the matrix and of constant and slope of A s + constant + slope t."""
            drift = powers @ cotangents.flatten(0, 1).sum(1, dtype=powers.dtype)
            return torch.mm(cotangents.flatten(0, 2).T, s), drift.to(s.dtype)

        (matrix, drift), (weight, affine) = linear(f_cotangents), linear(velocity_cotangents)
        return matrix, drift, torch.cat((weight, affine[1].unsqueeze(1)), dim=1), affine[0]


def _slopes(layers: Layers, states: Tensor) -> tuple[Tensor, Tensor]:
    """Return the slopes of the activations at preactivations, and the activations before their shift."""
    with inner_graph():
        z = states.detach().requires_grad_()
        a = layers.activate(z)
        (slope,) = torch.autograd.grad(a.sum(), z)
    # The slope of a saturated unit is denormal, or makes cotangents so; see `solve_adjoint`.
    return F.hardshrink(slope, torch.finfo(slope.dtype).eps ** 2), a.detach()


def linear(weight: Tensor, bias: Tensor, times: Tensor, x: Tensor) -> Tensor:
    """Apply a layer whose last input is the time."""
    affine = _affine(times, torch.stack((bias, weight[:, -1])), x.dtype)
    return F.linear(x, weight[:, :-1]) + affine.unsqueeze(1)


def _affine(times: Tensor, coefficients: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a + b t for the rows a, b of the coefficients (2, width), at m times: (m, width)."""
    return torch.addcmul(coefficients[:1], coefficients[1:], times.to(dtype).unsqueeze(1))


class _WideProduct(torch.autograd.Function):
    """A B, formed in the wide dtype and then rounded: its error enters every iteration."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        wide = torch.promote_types(a.dtype, wide_dtype(a.device))
        return (a.to(wide) @ b.to(wide)).to(a.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        (gradient,) = gradients
        with full_precision(gradient.device):
            return gradient @ b.T, a.T @ gradient
