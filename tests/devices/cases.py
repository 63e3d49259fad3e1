"""Inputs and a training step that the tests of devices share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from floater.positions import Positions
from floater.testing.inputs import mask_positions, with_fields

PADDED = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])


def counted_positions(model: Any) -> Positions:
    """Return positions 0 to 6 of three samples, which no mask was read for."""
    return _with_all_fields(model, Positions.arange(PADDED.shape[1]), torch.ones_like(PADDED))


def padded_positions(model: Any) -> Positions:
    """Return the positions of a padded batch."""
    return _with_all_fields(model, Positions.from_mask(PADDED), PADDED)


def _with_all_fields(model: Any, positions: Positions, mask: Tensor) -> Positions:
    """Return the positions with the fields that an encoding may read, and what is known of them."""
    filled = with_fields(positions, torch.arange(len(PADDED)), mask_positions(model, mask).structure)
    names = ("target_length", "language", "reordered", "token", "segment", "structure")
    return positions.but(**{name: getattr(filled, name) for name in names})


def step(stack: Any, x: Tensor, positions: Positions) -> list[Tensor | None]:
    """Run a training step, and return the output and the gradients of all parameters."""
    torch.manual_seed(3)
    out = stack(x, positions)
    out.sin().sum().backward()  # squares of normalised outputs hardly change
    return [out.detach(), *(p.grad for p in stack.parameters())]
