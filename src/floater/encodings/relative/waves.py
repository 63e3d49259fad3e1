"""Sines and cosines of real or whole positions, and products with waves of a distance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Waves:
    """sin(p w) and cos(p w) of positions p and frequencies w, each (batch or 1, 1, T, frequencies).

    Example:
        >>> waves = Waves.of(torch.tensor([[0.0]]), torch.tensor([1.0]))
        >>> waves.sin.item(), waves.cos.item()
        (0.0, 1.0)
    """

    sin: Tensor
    cos: Tensor

    @classmethod
    def of(cls, positions: Tensor, frequencies: Tensor, dtype: torch.dtype = torch.float32) -> Waves:
        """The waves of positions (batch or 1, T), of angles in float64."""
        angle = positions.double()[:, None, :, None] * frequencies.double()
        return cls(angle.sin().to(dtype), angle.cos().to(dtype))

    def toward(self, a: Tensor, b: Tensor, keys: Waves) -> Tensor:
        """The sum over w of a sin((t - s) w) + b cos((t - s) w), one matrix product by angle addition.

        Args:
            a: (batch, heads, T, frequencies), and
            b: the same, at the positions t of these waves.
            keys: waves at the positions s.

        Returns:
            (batch, heads, T, S).

        Example:
            >>> at = torch.tensor([[0.0, 2.0]])
            >>> waves = Waves.of(at, torch.tensor([0.5]))
            >>> a, b = torch.ones(1, 1, 2, 1), torch.zeros(1, 1, 2, 1)
            >>> waves.toward(a, b, waves)[0, 0, 1, 0].sin() == torch.tensor(1.0).sin().sin()
            tensor(True)
        """
        turned = torch.cat([b * self.sin - a * self.cos, a * self.sin + b * self.cos], -1)
        return turned @ torch.cat([keys.sin, keys.cos], -1).to(turned.dtype).transpose(-1, -2)


def frequencies(dim: int, base: float = 10000.0, device: torch.device | None = None) -> Tensor:
    """base^(-2i / dim) for i = 0, ..., dim / 2 - 1, float64 (Vaswani et al. 2017, section 3.5).

    Example:
        >>> frequencies(4).tolist()
        [1.0, 0.01]
    """
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
