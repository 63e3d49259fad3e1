"""The units inside of fields: what they let a solver know of the field between two evaluations of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from floater.flow.vector_fields import ACTIVATIONS, MLPField, ScaledField, SumField

# A unit is resolved if its argument moves by no more than this between nodes: then the Legendre coefficients
# of its activation show by their decay what they miss. Farther, two units that switch one after the other
# between the same nodes make a pulse that no node sees.
RESOLVED = 2.0
# Beyond this argument every activation is constant or linear, and far moves are resolved.
STRAIGHT = 8.0
# Arguments looked at together.
_PART = 1024


class Units(NamedTuple):
    """A layer of units.

    Args:
        argument: Its arguments (rows, units) at a time and vectors p (rows, dim).
        activate: The activation.
        columns: How far a change of each activation moves the velocity (units,).
    """

    argument: Callable[[Tensor, Tensor], Tensor]
    activate: Callable[[Tensor], Tensor]
    columns: Tensor


def units_of(field: nn.Module) -> list[Units]:
    """Return the layers of units of a field that the library knows; none of any other.

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
    """Return the changes of activations between successive arguments that move too far to be resolved.

    Args:
        arguments: Successive arguments (m, rows, units).
        activate: The activation.
        unit: What the arguments are multiplied by.

    Returns:
        Sizes of the changes (m - 1, rows, units), zero where they are resolved.

    Example:
        >>> unresolved(torch.tensor([0.0, 1.0, 9.0, 50.0]).view(4, 1, 1), torch.tanh).flatten() > 0
        tensor([False,  True, False])
    """
    before, after = arguments[:-1], arguments[1:]
    straight = torch.minimum(before, after) > STRAIGHT * unit
    far = ((after - before).abs() > RESOLVED * unit) & ~straight
    return activate(arguments).diff(dim=0).abs() * far


def farthest(successive: Tensor) -> Tensor:
    """Return the largest change between successive tensors."""
    # In parts, so that no copy of all of them is made.
    parts = (successive[i : i + _PART + 1].diff(dim=0) for i in range(0, len(successive) - 1, _PART))
    return torch.stack([torch.stack(part.aminmax()).abs() for part in parts]).amax()
