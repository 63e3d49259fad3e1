"""A mesh of intervals with collocation nodes, and the matrices that couple them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from floater.flow.collocation.quadrature import NODES, GaussRule, gauss_rule
from floater.flow.precision import wide_dtype

# Degrees of the polynomials that first guesses extrapolate. The highest coefficients of the interval before
# are mostly error, which extrapolation would amplify; other degrees change the iterations by less than 5 %.
GUESS_DEGREE, ADJOINT_GUESS_DEGREE = 5, 4


class Mesh:
    """Neighbouring intervals of N Gauss-Legendre nodes each.

    Args:
        edges: The edges of the intervals, increasing (n + 1 times).
        depth: Pipeline depth W, the number of intervals iterated together.
        dtype: The dtype of the iterations.
        device: The device of the iterations.
        nodes: The number of nodes N of an interval.

    Attributes:
        times: The nodes' times (n, N), wide.
        lengths: The intervals' lengths h (n,).
        weights: The intervals' quadrature weights h b (n, N).
        coupling: For the intervals w, ..., w + W - 1 the block-lower-triangular matrix Q (W N, W N) from
            velocities at their nodes to displacements from the left edge of the first: (n, W N, W N).
        extrapolation: From velocities at the nodes of interval w - 1 to a first guess in w: (n, N, N).
        adjoint_extrapolation: From cotangents of the velocities in interval w + 1 to a first guess of those
            in w, both of which are quadrature weights times a polynomial: (n - 1, N, N).

    Example:
        >>> mesh = Mesh([0.0, 1.0, 3.0], depth=2, dtype=torch.float64, device=torch.device("cpu"))
        >>> mesh.times.shape, mesh.coupling.shape, len(mesh)
        (torch.Size([2, 8]), torch.Size([2, 16, 16]), 2)
    """

    def __init__(
        self,
        edges: Sequence[float],
        depth: int,
        dtype: torch.dtype,
        device: torch.device,
        nodes: int = NODES,
    ) -> None:
        rule = gauss_rule(nodes)
        exact = torch.tensor(edges, dtype=torch.float64, device="cpu")
        lengths = exact.diff()
        self.edges, self.depth, self.nodes = list(edges), min(depth, len(lengths)), nodes
        wide = wide_dtype(device)
        times = exact[:-1, None] + lengths[:, None] * rule.nodes
        ratio = torch.ones_like(lengths)
        ratio[1:] = lengths[1:] / lengths[:-1]
        self.times = times.to(device, wide)
        self.lengths = lengths.to(device, dtype)
        weights = lengths[:, None] * rule.weights
        self.weights = weights.to(device, dtype)
        self.coupling = _coupling(rule, lengths, self.depth).to(device, dtype)
        guess = rule.evaluation(1 + ratio[:, None] * rule.nodes, min(GUESS_DEGREE, nodes - 1))
        self.extrapolation = guess.to(device, dtype)
        before = rule.evaluation((rule.nodes - 1) / ratio[1:, None], min(ADJOINT_GUESS_DEGREE, nodes - 1))
        self.adjoint_extrapolation = (weights[:-1, :, None] * before / weights[1:, None, :]).to(device, dtype)

    def __len__(self) -> int:
        return len(self.times)

    def at_nodes(self, function: Callable[[Tensor, Tensor], Tensor], states: Tensor) -> Tensor:
        """Apply a function of times (m,) and states (m, rows, width) at all nodes of (n, N, rows, width)."""
        result = function(self.times.flatten(), states.flatten(0, 1))
        return result.view(*states.shape[:2], *result.shape[1:])

    def displacements(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Integrate a velocity that all rows share.

        Args:
            velocity: The velocity at all nodes (n N, width).

        Returns:
            Its displacement from the left edge of interval w at the nodes of the intervals w, ..., w + W - 1
            (n, W N, width), and over interval w (n, width).
        """
        by_interval = velocity.view(len(self), self.nodes, -1)
        ahead = F.pad(by_interval, (0, 0, 0, 0, 0, self.depth - 1)).unfold(0, self.depth, 1)
        ahead = ahead.permute(0, 3, 1, 2).flatten(1, 2)
        return torch.bmm(self.coupling, ahead), torch.bmm(self.weights.unsqueeze(1), by_interval).squeeze(1)

    def edge_values(self, start: Tensor, velocities: Tensor) -> Tensor:
        """Integrate velocities (n, N, rows, dim) from a start (rows, dim) to all edges (n + 1, rows, dim)."""
        steps = torch.bmm(self.weights.unsqueeze(1), velocities.flatten(2)).view(-1, *start.shape)
        return torch.cat((start.unsqueeze(0), start + steps.to(start.dtype).cumsum(0)))

    def locate(self, times: Tensor) -> tuple[list[int], Tensor]:
        """Find the interval of each sorted time.

        Args:
            times: Sorted times (L,) from the first to the last edge, float64, on the CPU.

        Returns:
            Bounds b (n + 1): interval w holds times[b[w] : b[w + 1]]; and the relative position x of each
            time in its interval, from 0 to 1 (L,).
        """
        edges = torch.tensor(self.edges, dtype=torch.float64, device="cpu")
        interval = torch.searchsorted(edges[1:-1].contiguous(), times)
        counts = torch.bincount(interval, minlength=len(self))
        bounds = [0, *counts.cumsum(0).tolist()]
        return bounds, (times - edges[interval]) / edges.diff()[interval]


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # a cached mesh may be used in training next
def mesh_of(
    edges: tuple[float, ...], depth: int, dtype: torch.dtype, device: torch.device, nodes: int = NODES
) -> Mesh:
    """Return the mesh of some edges, from a cache, as many solves use the same mesh."""
    return Mesh(edges, depth, dtype, device, nodes)


def _coupling(rule: GaussRule, lengths: Tensor, depth: int) -> Tensor:
    """Return `Mesh.coupling`; intervals past the last have length zero."""
    count = len(rule.nodes)
    block = torch.zeros(depth, count, depth, count, dtype=torch.float64, device="cpu")
    for row in range(depth):
        block[row, :, row] = rule.quadrature
        block[row, :, :row] = rule.weights
    padded = torch.cat((lengths, lengths.new_zeros(depth - 1))).unfold(0, depth, 1)
    return (block * padded[:, None, None, :, None]).flatten(3, 4).flatten(1, 2)
