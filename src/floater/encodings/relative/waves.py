"""Sines and cosines of real or whole positions, and products with waves of a distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

UNCOVERED = ("keep", "cut", "round")


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
        """Return the waves of positions (batch or 1, T), of angles in float64."""
        angle = positions.double()[:, None, :, None] * frequencies.double()
        return cls(angle.sin().to(dtype), angle.cos().to(dtype))

    def toward(self, a: Tensor, b: Tensor, keys: Waves) -> Tensor:
        """Return the sum over w of a sin((t - s) w) + b cos((t - s) w), one matrix product by angle addition.

        Args:
            a: (batch, heads, T, frequencies) factors of the sines, at the positions t of these waves.
            b: (batch, heads, T, frequencies) factors of the cosines.
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
    """Return base^(-2i / dim), i = 0, ..., dim / 2 - 1, float64 (Vaswani et al. 2017, section 3.5).

    Example:
        >>> frequencies(4).tolist()
        [1.0, 0.01]
    """
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)


def covered(frequencies: Tensor, span: float, uncovered: str, step: float = 1.0) -> Tensor:
    """Return frequencies without phases that do not occur in texts of the training length.

    For a pair whose period exceeds the training span, training covers only a part of the circle; beyond the
    span it is out of distribution. "cut" gives it frequency zero, which leaves a constant component (FoPE:
    Hua et al. 2025). "round" makes every period the nearest whole number of tokens, at least 2, so that a
    pair whose period fits into the span has no new phase beyond it (Resonance RoPE: Wang et al. 2024). "keep"
    changes nothing.

    Args:
        frequencies: frequencies in radians per unit of time, of any shape.
        span: training length in tokens.
        uncovered: one of `UNCOVERED`.
        step: time between neighbouring tokens.

    Returns:
        Frequencies of the same shape.

    Example:
        >>> at = 2 * math.pi / torch.tensor([6.3, 40.2], dtype=torch.float64)
        >>> torch.round(2 * math.pi / covered(at, 16, "round"), decimals=6).tolist()
        [6.0, 40.0]
        >>> covered(at, 16, "cut")[1].item()
        0.0
    """
    if uncovered == "cut":
        return torch.where(frequencies * step * span < 2 * math.pi, 0.0, frequencies)
    if uncovered == "round":
        turn = 2 * math.pi / step
        return turn / (turn / frequencies).round().clamp(min=2)
    return frequencies
