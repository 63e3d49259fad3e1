"""Adversarial fields for solvers, and a campaign that counts silent errors."""

from __future__ import annotations

import copy
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from floater.flow.collocation.error_control import FlowSensitive, solve_edges
from floater.flow.errors import FlowError
from floater.flow.reference import flow_error
from floater.flow.solve import solve
from floater.flow.units import units_of
from floater.flow.vector_fields import CLOCKS, BoundedField, MLPField, ScaledField, SumField

KINDS = ("tanh", "silu", "gelu", "state", "scaled", "sum", "bounded", "relu")
_DIM, _UNITS, _ROWS, _END = 3, 6, 2, 10.0


def adversarial(kind: str, seed: int) -> tuple[nn.Module, Tensor]:
    """Return a field with two units that switch one shortly after the other, and a start.

    Together they make a pulse in time, which a solver may step over.

    Args:
        kind: An activation; or "state", where the vectors move the pulse, "scaled" and "sum", where the field
            is part of another, or "bounded" (`BoundedField`).
        seed: Seed of the weights, and of the slopes and times of the units.

    Returns:
        The field, and a start (2, 3).

    Example:
        >>> field, start = adversarial("bounded", 0)
        >>> start.shape
        torch.Size([2, 3])
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> float:
        return float(torch.empty(()).uniform_(low, high, generator=generator))

    bounded = kind == "bounded"
    activation = kind if kind in ("silu", "gelu", "relu") else "tanh"
    field = BoundedField(_DIM, _UNITS) if bounded else MLPField(_DIM, _UNITS, activation)
    steep, size, at = 10 ** uniform(0.5, 5), 10 ** uniform(-2, 1.5), uniform(0, _END)
    width = 10 ** uniform(-4, 0)
    with torch.no_grad():
        for parameter in field.parameters():
            nn.init.normal_(parameter, std=0.3, generator=generator)
        inner, outer, bias = field.inner.weight, field.outer.weight, field.inner.bias
        # The slowest clock, sin(t / 2^7), rises throughout the span: it is a time to a steep unit.
        slow, clock = (2.0 ** (CLOCKS - 1), math.sin) if bounded else (1.0, float)
        coupling = 10 ** uniform(-1, 2) if kind == "state" else 0.0
        pulse = (1.0, -2.0, 1.0) if kind == "relu" else (1.0, -1.0)
        if kind == "relu":  # has a closed form only as a function of the time alone
            inner[:, :_DIM] = 0
        inner[: len(pulse)] *= coupling
        inner[: len(pulse), _DIM + CLOCKS - 1 if bounded else _DIM] = steep * slow
        outer[:, 0] *= size / (steep * width) if kind == "relu" else size
        for unit, sign in enumerate(pulse):
            bias[unit] = -steep * slow * clock((at + unit * width) / slow)
            outer[:, unit] = sign * outer[:, 0]
    start = torch.randn(_ROWS, _DIM, generator=generator)
    if kind == "scaled":
        return ScaledField(field, nn.Parameter(torch.tensor(uniform(-1, 1)))), start
    return (SumField(BoundedField(_DIM, _UNITS), field) if kind == "sum" else field), start


def campaign(number: int, seed: int = 0, *, solver: Callable[..., Tensor] = solve) -> Counter[str]:
    """Solve adversarial fields of all kinds, with and without gradients, and count how the solves ended.

    Args:
        number: The number of fields.
        seed: The seed of the first.
        solver: A function with the arguments of `floater.flow.solve`.

    Returns:
        The numbers of solves "within" the bound (ten tolerances, and 20 roundings of the start amplified
        by the flow), "refused" by a `FlowError`, above the bound with a warning ("warned", `FlowSensitive`)
        or without ("silent"), and without a "reference" solution.

    Example:
        >>> campaign(2)["silent"]
        0
    """
    return Counter(_outcome(KINDS[k % len(KINDS)], k, solver) for k in range(seed, seed + number))


def _outcome(kind: str, seed: int, solver: Callable[..., Tensor]) -> str:
    field, start = adversarial(kind, seed)
    times = torch.linspace(0, _END, 21, dtype=torch.float64)[1:]
    with warnings.catch_warnings(record=True) as caught, torch.set_grad_enabled(seed % 2 == 0):
        warnings.simplefilter("always")
        try:
            p = solver(field, start, times).detach()
        except FlowError:
            return "refused"
    wide = copy.deepcopy(field).double()
    reference = _integral if kind == "relu" else _reference
    start = start.double()
    both = reference(wide, torch.cat((start, start * (1 + 2**-23))), times)
    if both is None:
        return "reference"
    exact, moved = both.chunk(2, 1)
    if flow_error(p, exact) <= 1e-5 + 20 * flow_error(moved, exact):
        return "within"
    warned = any(issubclass(warning.category, FlowSensitive) for warning in caught)
    return "warned" if warned else "silent"


@torch.no_grad()
def _integral(field: nn.Module, start: Tensor, times: Tensor) -> Tensor:
    """Integrate a field of ReLUs of the time alone: relu(x) is the derivative of relu(x)^2 / 2."""
    assert isinstance(field, MLPField)
    rate, offset, t = field.inner.weight[:, -1], field.inner.bias, times.unsqueeze(1)
    s = ((rate * t + offset).relu().square() - offset.relu().square()) / (2 * rate)
    outer = field.outer.weight
    moved = s @ outer[:, :-1].T + outer[:, -1] * t.square() / 2 + field.outer.bias * t
    return start + moved.unsqueeze(1)


@torch.no_grad()
def _reference(field: nn.Module, start: Tensor, times: Tensor) -> Tensor | None:
    """Solve in float64 with intervals so short that every unit that switches is resolved."""
    edges = torch.cat((torch.tensor(list(_steps(field, start)), dtype=torch.float64), times)).sort().values
    edges = edges[torch.cat((torch.ones(1, dtype=torch.bool), edges.diff() > 1e-12))]
    p = solve_edges(field, start, edges.tolist(), 1e-12, 1e-12)
    return None if p is None else p[torch.searchsorted(edges, times - 1e-9)]


def _steps(field: nn.Module, p: Tensor) -> Iterator[float]:
    """Yield times between which no unit moves by more than about 3 where it is not saturated."""
    layers, t = units_of(field), 0.0

    def arguments(t: Tensor, p: Tensor) -> Tensor:
        return torch.cat([layer.argument(t, p) for layer in layers], 1)

    while t < _END:
        yield t
        now, tiny = p.new_tensor(t), 1e-9
        velocity = field(now, p)
        z = arguments(now, p)
        rate = ((arguments(now + tiny, p + tiny * velocity) - z) / tiny).abs() + 1e-12
        step = float(((3 + 0.5 * (z.abs() - 30).clamp(min=0)) / rate).min())
        step = min(max(step, 1e-6), 0.25, _END - t)
        middle = field(now + step / 2, p + step / 2 * velocity)
        p, t = p + step * middle, t + step
    yield _END
