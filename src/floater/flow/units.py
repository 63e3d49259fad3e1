"""The units of fields, from which a solver bounds changes between two evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from floater.flow.vector_fields import ACTIVATIONS, MLPField, ScaledField, SumField

# A unit is resolved if its argument moves by no more than this between nodes: then the decay of the
# Legendre coefficients of its activation shows what they miss. If it moves farther, two units that switch one
# after the other between the same nodes make a pulse that no node sees.
RESOLVED = 2.0
# Beyond this argument every activation is constant or linear, and far moves are resolved.
STRAIGHT = 8.0
# Past a kink Legendre coefficients decay like a power of their degree, and estimates that take the decay for
# geometric are too low. Fields with kinks are solved to this part of the tolerance, which makes up
# for it where one is alone; of several that cancel, nodes show nothing.
KINKED = 0.1
# Jump of an activation's slope at zero; that of selu is scale (alpha - 1).
_SLOPE_JUMPS: dict[Callable[..., Tensor], float] = {
    F.relu: 1.0,
    F.selu: 1.0507009873554805 * 0.6732632423543772,
}
# Number of arguments compared at a time.
_PART = 1024


class Units(NamedTuple):
    """A layer of units.

    Args:
        argument: Function from a time and vectors p (rows, dim) to the arguments of the units (rows, units).
        activate: The activation.
        columns: Norm of the velocity's derivative by each activation (units,).
    """

    argument: Callable[[Tensor, Tensor], Tensor]
    activate: Callable[[Tensor], Tensor]
    columns: Tensor


def units_of(field: nn.Module) -> list[Units]:
    """Return the layers of units of a field of this library; none for any other field.

    Example:
        >>> [layer.columns.shape for layer in units_of(SumField(MLPField(2, 3), MLPField(2, 5)))]
        [torch.Size([3]), torch.Size([5])]
    """
    if isinstance(field, MLPField):
        columns = field.outer.weight.detach()[:, : field.hidden].norm(dim=0)
        return [Units(field.preactivations, ACTIVATIONS[field.activation], columns)]
    if isinstance(field, SumField):
        return [*units_of(field.a), *units_of(field.b)]
    if isinstance(field, ScaledField):
        scale = field.log_scale.detach().exp()
        return [
            Units(lambda t, p, of=layer: of.argument(scale * t, p), layer.activate, scale * layer.columns)  # type: ignore[misc]
            for layer in units_of(field.field)
        ]
    return []


def has_known_kinks(field: nn.Module) -> bool:
    """Return whether a field has no kinks, or only in units that `units_of` returns.

    Example:
        >>> has_known_kinks(MLPField(2, activation="relu")), has_known_kinks(nn.Linear(2, 2))
        (True, False)
    """
    if isinstance(field, SumField):
        return has_known_kinks(field.a) and has_known_kinks(field.b)
    if isinstance(field, ScaledField):
        return has_known_kinks(field.field)
    # A subclass may do more in its forward pass.
    return bool(getattr(field, "smooth", None)) or type(field).forward is MLPField.forward


class Arguments(nn.Module):
    """The arguments of all units of a field, as a module, so that its parameters can be replaced.

    Args:
        field: The field.
    """

    def __init__(self, field: nn.Module) -> None:
        super().__init__()
        self.field = field

    def forward(self, t: Tensor, p: Tensor) -> Sequence[Tensor]:
        """Return the arguments (rows, units) of each layer at a time and vectors (rows, dim)."""
        return tuple(layer.argument(t, p) for layer in units_of(self.field))


def unresolved(arguments: Tensor, activate: Callable[[Tensor], Tensor], unit: float = 1.0) -> Tensor:
    """Return the errors of activations between successive arguments that nodes do not show.

    A unit that moves too far counts with the change of its activation. A unit whose kink lies between two
    nodes counts with the mean distance from its chord, which is of the size of a quadrature rule's error and
    falls with the square of the gap; in whole tolerances (`KINKED`), as this estimate is complete.

    Args:
        arguments: Successive arguments (m, rows, units).
        activate: The activation.
        unit: Factor by which the arguments are multiplied.

    Returns:
        Errors (m - 1, rows, units), zero where they are resolved.

    Example:
        >>> import torch.nn.functional as F
        >>> unresolved(torch.tensor([0.0, 1.0, 9.0, 50.0]).view(4, 1, 1), torch.tanh).flatten() > 0
        tensor([False,  True, False])
        >>> unresolved(torch.tensor([-1.0, 1.0, 9.0]).view(3, 1, 1), F.relu).flatten() > 0
        tensor([ True, False])
    """
    before, after = arguments[:-1], arguments[1:]
    far = (after - before).abs() > RESOLVED * unit
    jump = _SLOPE_JUMPS.get(activate)
    if jump is None:
        straight = torch.minimum(before, after) > STRAIGHT * unit
        return activate(arguments).diff(dim=0).abs() * (far & ~straight)
    small, large = torch.minimum(before.abs(), after.abs()), torch.maximum(before.abs(), after.abs())
    chord = small * (large / (small + large).clamp(min=torch.finfo(large.dtype).tiny))
    kink = KINKED * jump / 2 * chord * ((before < 0) != (after < 0))
    # Above zero both are straight.
    return kink + activate(arguments.clamp(max=0)).diff(dim=0).abs() * far


def steepest(arguments: Tensor, activate: Callable[[Tensor], Tensor], unit: float = 1.0) -> Tensor:
    """Return the largest change between arguments, relative to `RESOLVED`; infinite with kinks."""
    if activate in _SLOPE_JUMPS:
        return arguments.new_full((), math.inf)
    # In parts, so that no copy of all of them is made.
    parts = (arguments[i : i + _PART + 1].diff(dim=0) for i in range(0, len(arguments) - 1, _PART))
    return torch.stack([torch.stack(part.aminmax()).abs() for part in parts]).amax() / (RESOLVED * unit)
