"""Solutions as piecewise polynomials: read at any time, whole or row by row, differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from floater.flow.errors import FlowDiverged
from floater.flow.legendre import gauss
from floater.flow.nonblocking import require, sent
from floater.flow.stepping import full_precision
from floater.flow.windows import NODES, Windows


class Dense:
    """A solution p(t) as a polynomial in each window, readable at any time of its span.

    Args:
        windows: The windows.
        start: p at the first edge (rows, dim), wide.
        velocities: dp/dt at the nodes (n, N, rows, dim).
        dtype: The dtype to return.
        end: The end of its span; by default that of the last window.
        returned: Takes a sum of the cotangents of each reading, once they are there.
    """

    def __init__(
        self,
        windows: Windows,
        start: Tensor,
        velocities: Tensor,
        dtype: torch.dtype,
        end: float | None = None,
        returned: list[Tensor] | None = None,
    ) -> None:
        self.edges, self.begin = windows.edges, windows.edges[0]
        self.end = windows.edges[-1] if end is None else end
        self._returned = [] if returned is None else returned
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
        known = times.detach().to("cpu", torch.float64)
        low, high = torch.stack(known.aminmax()).tolist()
        if not (self.begin <= low and high <= self.end):
            outside = high if self.begin <= low else low
            raise ValueError(
                f"times must lie from t = {self.begin:g} to {self.end:g}, which the solution spans, "
                f"got {outside:g}"
            )
        return Reading(self, sent(times, self._start.device, self._start.dtype), known)

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
        start, velocities = self._start.detach(), self._velocities.detach()
        return Dense(self._windows, start, velocities, self._dtype, self.end)


class Reading(Sequence[Tensor]):
    """A solution at some times, which are located once for all rows: row i is (length, dim).

    A row is computed anew whenever it is asked for, in time linear in length x dim, and no other row with
    it: a Transformer that asks for one projection's vectors at a time never holds those of another.

    Args:
        solution: The solution.
        times: Times of its span (length,), wide, in any order.
        known: The same numbers, float64, on the CPU.
    """

    def __init__(self, solution: Dense, times: Tensor, known: Tensor) -> None:
        self._windows, self._dtype, self._times = solution._windows, solution._dtype, times
        self._start, self._velocities = solution._start, solution._velocities
        self._edges, self._returned = solution.edge_values, solution._returned
        self._order: Tensor | None = None
        if not bool((known.diff() >= 0).all()):
            known, order = known.sort()
            self._order = sent(order, times.device)
        self._bounds, self._x = self._windows.locate(known)
        integrals = _integration(self._windows, self._bounds, self._x)
        self._integrals = sent(integrals, self._velocities.device, self._velocities.dtype)

    def __len__(self) -> int:
        return len(self._start)

    def __getitem__(self, row: Any) -> Any:
        start, velocities = self._rows
        return self._read(start[row], velocities[row], self._edges[:, row])

    def all(self) -> Tensor:
        """The vectors of all rows (length, rows, dim)."""
        return self._read(self._start, self._velocities, self._edges)

    def projected(self, weight: Tensor) -> Reading:
        """Return the reading of W p: the polynomials are projected once, not the vectors of every time.

        Args:
            weight: W of each row, (rows, dim, width).

        Returns:
            A reading at the same times, whose rows are (length, width).

        Example:
            >>> from floater.flow import SinusoidField, dense
            >>> field = SinusoidField(2)
            >>> circle = dense(field, field.start()[None], 7.0).read(torch.tensor([0.0, 3.0]))
            >>> bool((circle.projected(torch.eye(2)[None])[0] - circle[0]).abs().max() < 1e-6)
            True
        """
        other = copy(self)
        other.__dict__.pop("_rows", None)
        with full_precision(weight.device):
            wide = weight.to(self._start.dtype)
            narrow = weight.to(self._velocities.dtype)
            other._start = torch.einsum("rd,rdw->rw", self._start, wide)
            other._edges = torch.einsum("nrd,rdw->nrw", self._edges, wide.detach()).contiguous()
            other._velocities = torch.einsum("nkrd,rdw->nkrw", self._velocities, narrow).contiguous()
        return other

    @cached_property
    def _rows(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        # One unbind: a backward pass through a selection per row would be quadratic in the rows.
        return self._start.unbind(0), self._velocities.unbind(2)

    def _read(self, start: Tensor, velocities: Tensor, edges: Tensor) -> Tensor:
        arguments = (self, edges, start, velocities, self._times)
        with full_precision(start.device):
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
            require(
                finite.all(),
                lambda: FlowDiverged(float(times[~finite].min()), f"p is too large for {dtype}"),
                later=any(ctx.needs_input_grad),
            )
        return p

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        reading, (velocities,), g = ctx.reading, ctx.saved_tensors, cotangents[0]
        windows, bounds, x, integrals = reading._windows, reading._bounds, reading._x, reading._integrals
        values = None
        if ctx.needs_input_grad[4]:
            values = sent(gauss(NODES).evaluation(x), velocities.device, velocities.dtype)
        result = torch.empty(velocities.shape, dtype=velocities.dtype, device=velocities.device)
        times = torch.zeros_like(reading._times) if values is not None else None
        right = reading._edges.new_zeros(velocities.shape[2:])
        for w in reversed(range(len(windows))):
            a, b = bounds[w], bounds[w + 1]
            own = reading._take(g, a, b).to(velocities.dtype).reshape(b - a, right.numel())
            base = torch.mm(windows.weights[w].unsqueeze(1), right.to(velocities.dtype).view(1, -1))
            torch.addmm(base, integrals[a:b].T, own, out=result[w].view(NODES, -1))
            right = right + own.sum(0).view_as(right)
            if values is not None and times is not None:
                rates = torch.mm(values[a:b], velocities[w].flatten(1))
                reading._put(times, a, b, (rates * own).sum(1).to(times.dtype))
        reading._returned.append(right.sum())
        return None, None, right, result, times


def _integration(windows: Windows, bounds: list[int], x: Tensor) -> Tensor:
    """From velocities at the nodes of each time's window to its displacement from the left edge."""
    lengths = torch.tensor(windows.edges, dtype=torch.float64).diff()
    own = lengths.repeat_interleave(torch.tensor(bounds).diff())
    return own.unsqueeze(1) * gauss(NODES).integration(x)
