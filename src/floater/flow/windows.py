"""Windows of collocation nodes that tile a span of time, and the matrices that couple them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from floater.flow.legendre import Rule, gauss
from floater.flow.stepping import wide_dtype

NODES = 8
_GUESS_DEGREE, _RETURN_DEGREE = 5, 4


class Windows:
    """Neighbouring windows of N Gauss-Legendre nodes each.

    Args:
        edges: Where the windows meet, increasing (n + 1 times).
        flight: How many windows W are swept together.
        dtype: The dtype of the sweeps.
        device: Where they run.

    Attributes:
        times: The nodes' times (n, N), wide.
        weights: The windows' quadrature weights h b (n, N).
        quadrature: For the windows w, ..., w + W - 1 the block-lower-triangular matrix (W N, W N) from
            velocities at their nodes to displacements from the left edge of the first: (n, W N, W N).
        guesses: From velocities at the nodes of window w - 1 to a first guess in window w (n, N, N).
        returns: From cotangents of the velocities in window w + 1 to a first guess of those in window w, both
            quadrature weights times a polynomial (n - 1, N, N).

    Example:
        >>> windows = Windows([0.0, 1.0, 3.0], flight=2, dtype=torch.float64, device=torch.device("cpu"))
        >>> windows.times.shape, windows.quadrature.shape, len(windows)
        (torch.Size([2, 8]), torch.Size([2, 16, 16]), 2)
    """

    def __init__(self, edges: Sequence[float], flight: int, dtype: torch.dtype, device: torch.device) -> None:
        rule = gauss(NODES)
        exact = torch.tensor(edges, dtype=torch.float64)
        lengths = exact.diff()
        self.edges, self.flight = list(edges), min(flight, len(lengths))
        wide = wide_dtype(device)
        times = exact[:-1, None] + lengths[:, None] * rule.nodes
        ratio = torch.ones_like(lengths)
        ratio[1:] = lengths[1:] / lengths[:-1]
        self.times = times.to(device, wide)
        weights = lengths[:, None] * rule.weights
        self.weights = weights.to(device, dtype)
        self.quadrature = _coupling(rule, lengths, self.flight).to(device, dtype)
        self.guesses = rule.evaluation(1 + ratio[:, None] * rule.nodes, _GUESS_DEGREE).to(device, dtype)
        self.lengths = lengths.to(device, dtype)
        before = rule.evaluation((rule.nodes - 1) / ratio[1:, None], _RETURN_DEGREE)
        self.returns = (weights[:-1, :, None] * before / weights[1:, None, :]).to(device, dtype)

    def __len__(self) -> int:
        return len(self.times)

    def by_nodes(self, function: Callable[[Tensor, Tensor], Tensor], states: Tensor) -> Tensor:
        """A function of times (m,) and states (m, rows, width), at all nodes of (n, N, rows, width)."""
        result = function(self.times.flatten(), states.flatten(0, 1))
        return result.view(*states.shape[:2], *result.shape[1:])

    def displacements(self, forcing: Tensor) -> tuple[Tensor, Tensor]:
        """What a velocity that all rows share adds to the state.

        Args:
            forcing: The velocity at all nodes (n N, width).

        Returns:
            Its displacement from the left edge of window w at the nodes of the windows w, ..., w + W - 1
            (n, W N, width), and over window w (n, width).
        """
        own = forcing.view(len(self), NODES, -1)
        ahead = F.pad(own, (0, 0, 0, 0, 0, self.flight - 1)).unfold(0, self.flight, 1)
        ahead = ahead.permute(0, 3, 1, 2).flatten(1, 2)
        return torch.bmm(self.quadrature, ahead), torch.bmm(self.weights.unsqueeze(1), own).squeeze(1)

    def locate(self, times: Tensor) -> tuple[list[int], Tensor]:
        """Which of the sorted times lie in which window.

        Args:
            times: Sorted times (L,) from the first to the last edge, float64, on the CPU.

        Returns:
            Bounds b (n + 1): window w holds times[b[w] : b[w + 1]]; and each time's place x in its
            window, in [0, 1] (L,).
        """
        edges = torch.tensor(self.edges, dtype=torch.float64)
        window = torch.searchsorted(edges[1:-1].contiguous(), times)
        counts = torch.bincount(window, minlength=len(self))
        bounds = [0, *counts.cumsum(0).tolist()]
        return bounds, (times - edges[window]) / edges.diff()[window]


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # a training may use what is kept
def tiled(edges: tuple[float, ...], flight: int, dtype: torch.dtype, device: torch.device) -> Windows:
    """The windows between these edges, kept, as one plan serves many solves."""
    return Windows(edges, flight, dtype, device)


def _coupling(rule: Rule, lengths: Tensor, flight: int) -> Tensor:
    """The matrices `Windows.quadrature`; windows past the last count as empty."""
    count = len(rule.nodes)
    block = torch.zeros(flight, count, flight, count, dtype=torch.float64)
    for row in range(flight):
        block[row, :, row] = rule.quadrature
        block[row, :, :row] = rule.weights
    padded = torch.cat((lengths, lengths.new_zeros(flight - 1))).unfold(0, flight, 1)
    return (block * padded[:, None, None, :, None]).flatten(3, 4).flatten(1, 2)
