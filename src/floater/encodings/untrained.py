"""Position models with parameters that are saved and loaded with them, but not trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from torch import Tensor

from floater.encodings.model import PositionModel


class Untrained(PositionModel):
    """A position model with parameters that get no gradient.

    Example:
        >>> from floater import build
        >>> model = build("synthesizer", dim=8, heads=2, layers=1, max_length=16, learned=False)
        >>> model.requires_grad_().eval().table.requires_grad
        False
    """

    def untrained(self) -> Iterable[Tensor]:
        """Return the parameters that get no gradient."""
        raise NotImplementedError(f"{type(self).__name__} must define untrained")

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for parameter in self.untrained():
            parameter.requires_grad_(False)  # loaders of checkpoints switch gradients on
        return self
