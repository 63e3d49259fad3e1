"""Solutions as piecewise polynomials: read at any time, whole or row by row, differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from floater.flow.errors import FlowDiverged
from floater.flow.legendre import gauss
from floater.flow.windows import NODES, Windows


class Dense:
    """A solution p(t) as a polynomial in each window, readable at any time of its span.

    Args:
        windows: The windows.
        start: p at the first edge (rows, dim), wide.
        velocities: dp/dt at the nodes (n, N, rows, dim).
        dtype: The dtype to return.
    """

    def __init__(self, windows: Windows, start: Tensor, velocities: Tensor, dtype: torch.dtype) -> None:
        self.edges, self.begin, self.end = windows.edges, windows.edges[0], windows.edges[-1]
        self._windows, self._start, self._velocities, self._dtype = windows, start, velocities, dtype

    def at(self, times: Tensor) -> Tensor:
        """p at any times of the span, in any order; gradients flow to theta, start and times.

        Args:
            times: Times (length,) from `begin` to `end`.

        Returns:
            Vectors (length, rows, dim).

        Raises:
            ValueError: if the times are not one-dimensional or one lies outside the span.
            FlowDiverged: if p is too large for the dtype to return.
        """
        return self.read(times).all()

    def read(self, times: Tensor) -> Reading:
        """The same vectors, row by row as they are asked for; arguments and errors as of `at`.

        Example:
            >>> from floater.flow import SinusoidField, dense
            >>> field = SinusoidField(2)
            >>> circle = dense(field, field.start().expand(3, 2), 7.0)
            >>> len(circle.read(torch.rand(5))), circle.read(torch.rand(5))[0].shape
            (3, torch.Size([5, 2]))
        """
        if times.dim() != 1 or len(times) == 0:
            raise ValueError(f"times must be (length,) and not empty, got shape {tuple(times.shape)}")
        wide = times.to(self._start.device, self._start.dtype)
        low, high = torch.stack(wide.detach().aminmax()).tolist()
        if not (self.begin <= low and high <= self.end):
            outside = high if self.begin <= low else low
            raise ValueError(
                f"times must lie from t = {self.begin:g} to {self.end:g}, which the solution spans, "
                f"got {outside:g}"
            )
        return Reading(self._windows, self._start, self._velocities, self.edge_values, self._dtype, wide)

    def at_edges(self) -> Tensor:
        """p at all edges of the windows (n + 1, rows, dim), wide."""
        return _edge_values(self._windows, self._start, self._velocities)

    @cached_property
    def edge_values(self) -> Tensor:
        """The same numbers without gradients, computed once."""
        return _edge_values(self._windows, self._start.detach(), self._velocities.detach())

    @property
    def arithmetic(self) -> torch.dtype:
        """The dtype that the field was evaluated in."""
        return self._velocities.dtype

    def detach(self) -> Dense:
        """The same solution without gradients."""
        return Dense(self._windows, self._start.detach(), self._velocities.detach(), self._dtype)


class Reading(Sequence[Tensor]):
    """A solution at some times, which are located once for all rows: row i is (length, dim).

    A row is computed anew whenever it is asked for, in time linear in length x dim, and no other row with
    it: a Transformer that asks for one projection's vectors at a time never holds those of another.

    Args:
        windows, start, velocities, dtype: See `Dense`.
        edges: p at all edges of the windows (n + 1, rows, dim), wide.
        times: Times of the span (length,), wide, in any order.
    """

    def __init__(
        self,
        windows: Windows,
        start: Tensor,
        velocities: Tensor,
        edges: Tensor,
        dtype: torch.dtype,
        times: Tensor,
    ) -> None:
        self._windows, self._start, self._velocities = windows, start, velocities
        self._edges, self._dtype, self._times = edges, dtype, times
        ascending = times.detach()
        self._order: Tensor | None = None
        if not bool((ascending.diff() >= 0).all()):
            ascending, self._order = ascending.sort()
        self._bounds, self._x = windows.locate(ascending)
        self._integrals = _integration(windows, self._bounds, self._x, velocities)

    def __len__(self) -> int:
        return len(self._start)

    def __getitem__(self, row: Any) -> Any:
        start, velocities = self._rows
        return self._read(start[row], velocities[row], self._edges[:, row])

    def all(self) -> Tensor:
        """The vectors of all rows (length, rows, dim)."""
        return self._read(self._start, self._velocities, self._edges)

    @cached_property
    def _rows(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        # One unbind: a backward pass through a selection per row would be quadratic in the rows.
        return self._start.unbind(0), self._velocities.unbind(2)

    def _read(self, start: Tensor, velocities: Tensor, edges: Tensor) -> Tensor:
        arguments = (self, edges, start, velocities, self._times)
        with torch.autocast(start.device.type, enabled=False):
            p: Tensor = _Read.apply(*arguments)  # type: ignore[no-untyped-call]
        return p

    def _take(self, values: Tensor, a: int, b: int) -> Tensor:
        """Those of sorted times a to b, from values in the order asked for."""
        return values[a:b] if self._order is None else values.index_select(0, self._order[a:b])

    def _put(self, values: Tensor, a: int, b: int, part: Tensor) -> None:
        """The reverse of `_take`."""
        if self._order is None:
            values[a:b] = part
        else:
            values.index_copy_(0, self._order[a:b], part.to(values.dtype))


def _edge_values(windows: Windows, start: Tensor, velocities: Tensor) -> Tensor:
    steps = torch.bmm(windows.weights.unsqueeze(1), velocities.flatten(2)).view(-1, *start.shape)
    return torch.cat((start.unsqueeze(0), start + steps.to(start.dtype).cumsum(0)))


class _Read(torch.autograd.Function):
    """p at the times of a reading: the integrals of the windows' polynomials, one product per window."""

    @staticmethod
    def forward(
        ctx: Any, reading: Reading, edges: Tensor, start: Tensor, velocities: Tensor, times: Tensor
    ) -> Tensor:
        ctx.reading = reading
        ctx.save_for_backward(velocities)
        integrals, dtype = reading._integrals, reading._dtype
        lefts = edges.to(velocities.dtype)
        p = velocities.new_empty(len(times), *start.shape, dtype=dtype)
        for w, (a, b) in enumerate(pairwise(reading._bounds)):
            if a < b:
                arguments = (lefts[w].view(1, -1), integrals[a:b], velocities[w].flatten(1))
                if reading._order is None and dtype == velocities.dtype:
                    torch.addmm(*arguments, out=p[a:b].view(b - a, -1))
                else:
                    reading._put(p, a, b, torch.addmm(*arguments).view(b - a, *start.shape))
        if dtype != velocities.dtype:
            finite = p.isfinite().flatten(1).all(1)
            if not bool(finite.all()):
                earliest = float(times[~finite].min())
                raise FlowDiverged(earliest, f"p is too large for {dtype}")
        return p

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        reading, (velocities,), g = ctx.reading, ctx.saved_tensors, cotangents[0]
        windows, bounds, x, integrals = reading._windows, reading._bounds, reading._x, reading._integrals
        values = gauss(NODES).evaluation(x).to(velocities) if ctx.needs_input_grad[4] else None
        result = torch.empty(velocities.shape, dtype=velocities.dtype, device=velocities.device)
        times = x.new_zeros(len(x)) if values is not None else None
        right = x.new_zeros(velocities.shape[2:])
        for w in reversed(range(len(windows))):
            a, b = bounds[w], bounds[w + 1]
            own = reading._take(g, a, b).to(velocities.dtype).reshape(b - a, right.numel())
            base = torch.mm(windows.weights[w].unsqueeze(1), right.to(velocities.dtype).view(1, -1))
            torch.addmm(base, integrals[a:b].T, own, out=result[w].view(NODES, -1))
            right = right + own.sum(0).view_as(right)
            if values is not None and times is not None:
                rates = torch.mm(values[a:b], velocities[w].flatten(1))
                reading._put(times, a, b, (rates * own).sum(1).to(times.dtype))
        return None, None, right, result, times


def _integration(windows: Windows, bounds: list[int], x: Tensor, like: Tensor) -> Tensor:
    """From velocities at the nodes of each time's window to its displacement from the left edge."""
    counts = torch.tensor(bounds).diff().to(x.device)
    lengths = windows.lengths.to(x).repeat_interleave(counts)
    return (lengths.unsqueeze(1) * gauss(NODES).integration(x)).to(like)
