"""Distributions of the time to the next event, from the outputs of a linear layer."""

# mypy: disable-error-code="no-untyped-call"
# (the distributions of torch are untyped)

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal
from torch.nn import functional as F

NARROWEST = 1e-2
"""The least standard deviation of a density of a standardised value, so that no likelihood is infinite."""


class LogNormalMixture:
    """A mixture of log-normal densities.

    Source: Shchur, Bilos, Guennemann, "Intensity-Free Learning of Temporal Point Processes" (2020), section
    3.2: log gap = mean + std z, z a mixture of normals.

    Args:
        raw: (..., 3 K) weights, means and widths of the K components, any real numbers.
        mean: mean of the logarithm of the training gaps.
        std: standard deviation of that logarithm.

    Example:
        >>> gaps = LogNormalMixture(torch.zeros(2, 6), mean=0.0, std=1.0)
        >>> gaps.median(), gaps.cdf(torch.ones(2))
        (tensor([1., 1.]), tensor([0.5000, 0.5000]))
    """

    def __init__(self, raw: Tensor, mean: float, std: float) -> None:
        weights, means, widths = raw.float().chunk(3, -1)
        widths = F.softplus(widths) + NARROWEST
        self.mean, self.std, self._means, self._widths = mean, std, means, widths
        self._z = MixtureSameFamily(
            Categorical(logits=weights, validate_args=False),
            Normal(means, widths, validate_args=False),
            validate_args=False,
        )

    def _standard(self, gap: Tensor) -> Tensor:
        return ((gap.double().log() - self.mean) / self.std).to(gap.dtype)

    def log_prob(self, gap: Tensor) -> Tensor:
        """Return the log density at a gap (...)."""
        density: Tensor = self._z.log_prob(self._standard(gap)) - gap.log() - math.log(self.std)
        return density

    def cdf(self, gap: Tensor) -> Tensor:
        """Return the probability of a shorter gap (...)."""
        below: Tensor = self._z.cdf(self._standard(gap))
        return below

    @torch.no_grad()
    def median(self) -> Tensor:
        """Return the median gap (...), by bisection between the components' medians."""
        low, high = self._means.amin(-1), self._means.amax(-1)
        for _ in range(40):
            middle = (low + high) / 2
            above = self._z.cdf(middle) < 0.5
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        return (self.mean + self.std * (low + high) / 2).exp()


class PiecewiseHazard:
    """A hazard that is constant between edges, and from the last one on.

    The density is h(gap) exp(-H(gap)), H the integral of the hazard h from 0.

    Args:
        raw: (..., K) any real numbers.
        edges: K growing times, the first 0: quantiles of the training gaps.

    Example:
        >>> raw = torch.full((1, 2), math.log(math.e - 1))  # softplus gives 1: a hazard of 1 / width
        >>> gaps = PiecewiseHazard(raw, [0.0, 1.0])
        >>> gaps.cdf(torch.tensor([1.0])), gaps.median()
        (tensor([0.6321]), tensor([0.6931]))
    """

    def __init__(self, raw: Tensor, edges: Sequence[float]) -> None:
        self._edges = torch.tensor(edges, dtype=torch.float32, device=raw.device)
        widths = self._edges.diff()
        self._widths = torch.cat((widths, widths.new_full((1,), math.inf)))
        # the last interval has no width: its hazard is measured by the one before
        self._rates = F.softplus(raw.float()) / torch.cat((widths, widths[-1:]))

    def _integral(self, gap: Tensor) -> Tensor:
        inside = (gap.unsqueeze(-1) - self._edges).clamp(min=0)
        return (self._rates * torch.minimum(inside, self._widths)).sum(-1)

    def log_prob(self, gap: Tensor) -> Tensor:
        """Return the log density at a gap (...)."""
        interval = torch.searchsorted(self._edges, gap.contiguous(), right=True) - 1
        rate = self._rates.gather(-1, interval.unsqueeze(-1)).squeeze(-1)
        return rate.log() - self._integral(gap)

    def cdf(self, gap: Tensor) -> Tensor:
        """Return the probability of a shorter gap (...)."""
        return -torch.expm1(-self._integral(gap))

    @torch.no_grad()
    def median(self) -> Tensor:
        """Return the median gap (...), where the integral of the hazard is log 2."""
        reached = F.pad((self._rates[..., :-1] * self._widths[:-1]).cumsum(-1), (1, 0))
        interval = (reached <= math.log(2)).sum(-1, keepdim=True) - 1
        rest = (math.log(2) - reached.gather(-1, interval)) / self._rates.gather(-1, interval)
        return (self._edges[interval] + rest).squeeze(-1)


Gaps = LogNormalMixture | PiecewiseHazard
"""The distribution of a positive time."""
