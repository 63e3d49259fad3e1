"""A solution as a piecewise polynomial: evaluated at any times of its span, whole or row by row."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from floater.flow.collocation.mesh import Mesh
from floater.flow.collocation.quadrature import NODES, gauss_rule
from floater.flow.errors import FlowDiverged
from floater.flow.precision import backward_in_full_precision, full_precision
from floater.flow.second_derivatives import DISCRETE, refuse_second_derivatives


class Solution:
    """A solution p(t), a polynomial of degree 8 in each interval of a mesh.

    Args:
        mesh: The mesh.
        start: p at the first edge (rows, dim), wide.
        velocities: dp/dt at the nodes (n, N, rows, dim).
        dtype: The dtype to return.
        end: The end of its span, which may lie before the last edge.
    """

    def __init__(
        self, mesh: Mesh, start: Tensor, velocities: Tensor, dtype: torch.dtype, end: float | None = None
    ) -> None:
        self.edges, self.begin = mesh.edges, mesh.edges[0]
        self.end = mesh.edges[-1] if end is None else end
        self._mesh, self._start, self._velocities, self._dtype = mesh, start, velocities, dtype

    def at(self, times: Tensor) -> Tensor:
        """Evaluate p at any times of the span, in any order; gradients flow to theta, start and times.

        Args:
            times: Times (length,) from `begin` to `end`.

        Returns:
            Vectors (length, rows, dim).

        Raises:
            TypeError: if the times are not a tensor.
            ValueError: if the times are not one-dimensional or one lies outside the span.
            FlowDiverged: if p is too large for the dtype to return.
        """
        return self.sample(times).all()

    def sample(self, times: Tensor) -> Samples:
        """Return the vectors of `at`, computed row by row as they are indexed.

        Arguments and errors are those of `at`.

        Example:
            >>> from floater.flow import SinusoidField, solve_dense
            >>> field = SinusoidField(2)
            >>> circle = solve_dense(field, field.start().expand(3, 2), 7.0)
            >>> len(circle.sample(torch.rand(5))), circle.sample(torch.rand(5))[0].shape
            (3, torch.Size([5, 2]))
        """
        if not isinstance(times, Tensor):
            raise TypeError(f"times must be a tensor (length,), got {type(times).__name__}")
        if times.dim() != 1 or len(times) == 0:
            raise ValueError(f"times must be (length,) and not empty, got shape {tuple(times.shape)}")
        exact = times.detach().to("cpu", torch.float64)
        low, high = torch.stack(exact.aminmax()).tolist()
        if not (self.begin <= low and high <= self.end):
            outside = high if self.begin <= low else low
            raise ValueError(
                f"times must lie from t = {self.begin:g} to {self.end:g}, which the solution spans, "
                f"got {outside:g}"
            )
        return Samples(self, times.to(self._start.device, self._start.dtype), exact)

    @cached_property
    def edge_values(self) -> Tensor:
        """Return p at all edges of the mesh (n + 1, rows, dim), wide, without gradient."""
        return self._mesh.edge_values(self._start.detach(), self._velocities.detach())

    def detach(self) -> Solution:
        """Return the solution without gradients."""
        start, velocities = self._start.detach(), self._velocities.detach()
        return Solution(self._mesh, start, velocities, self._dtype, self.end)

    def with_gradients(self, velocities: Tensor) -> Solution:
        """Return the solution with the same velocities (n, N, rows, dim), but differentiable ones."""
        other = copy(self)
        other._velocities = velocities
        return other


class Samples(Sequence[Tensor]):
    """A solution at some times, which are located once for all rows: row i is (length, dim).

    A row is computed anew whenever it is indexed, in time linear in length x dim, and no other row with it: a
    Transformer that reads the vectors of one projection at a time never stores those of another.

    Args:
        solution: The solution.
        times: Times of its span (length,), wide, in any order.
        exact: The same times, float64, on the CPU.
    """

    def __init__(self, solution: Solution, times: Tensor, exact: Tensor) -> None:
        self._mesh, self._dtype, self._times = solution._mesh, solution._dtype, times
        self._start, self._velocities = solution._start, solution._velocities
        self._edges = solution.edge_values
        self._order: Tensor | None = None
        if not bool((exact.diff() >= 0).all()):
            exact, order = exact.sort()
            self._order = order.to(times.device)
        self._bounds, self._x = self._mesh.locate(exact)
        # from velocities in each time's interval to its displacement there (length, N)
        lengths = torch.tensor(self._mesh.edges, dtype=torch.float64, device="cpu").diff()
        interval_lengths = lengths.repeat_interleave(torch.tensor(self._bounds, device="cpu").diff())
        integrals = interval_lengths.unsqueeze(1) * gauss_rule(NODES).integration(self._x)
        self._integrals = integrals.to(self._velocities.device, self._velocities.dtype)

    def __len__(self) -> int:
        return len(self._start)

    def __getitem__(self, row: Any) -> Any:
        start, velocities = self._rows
        return self._evaluate(start[row], velocities[row], self._edges[:, row])

    def all(self) -> Tensor:
        """Return the vectors of all rows (length, rows, dim)."""
        return self._evaluate(self._start, self._velocities, self._edges)

    def projected(self, weight: Tensor) -> Samples:
        """Return the samples of W p: the polynomials are projected once, not the vectors of every time.

        Args:
            weight: W of each row, (rows, dim, width).

        Returns:
            Samples at the same times, whose rows are (length, width).

        Example:
            >>> from floater.flow import SinusoidField, solve_dense
            >>> field = SinusoidField(2)
            >>> circle = solve_dense(field, field.start()[None], 7.0).sample(torch.tensor([0.0, 3.0]))
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

    def _evaluate(self, start: Tensor, velocities: Tensor, edges: Tensor) -> Tensor:
        arguments = (self, edges, start, velocities, self._times)
        with full_precision(start.device):
            p: Tensor = _Evaluate.apply(*arguments)  # type: ignore[no-untyped-call]
        return p

    def _take(self, values: Tensor, a: int, b: int) -> Tensor:
        """Return the values of the sorted times a to b, from values in the order of the times."""
        return values[a:b] if self._order is None else values.index_select(0, self._order[a:b])

    def _put(self, values: Tensor, a: int, b: int, part: Tensor) -> None:
        """Write the values of the sorted times a to b into values in the order of the times."""
        if self._order is None:
            values[a:b] = part
        else:
            values.index_copy_(0, self._order[a:b], part.to(values.dtype))


class _Evaluate(torch.autograd.Function):
    """p at the times of samples: p(left edge) + the integral of the interval's polynomial.

    One product per interval does the projection of all its times at once, in both directions; the left edges,
    which depend on all velocities before, are constants here: the backward pass carries their gradients from
    interval to interval in `right`.
    """

    @staticmethod
    def forward(
        ctx: Any, samples: Samples, edges: Tensor, start: Tensor, velocities: Tensor, times: Tensor
    ) -> Tensor:
        ctx.samples = samples
        ctx.save_for_backward(velocities, start, times)  # all that its gradients depend on
        integrals, dtype = samples._integrals, samples._dtype
        lefts = edges.to(velocities.dtype)
        p = velocities.new_empty(len(times), *start.shape, dtype=dtype)
        for w, (a, b) in enumerate(pairwise(samples._bounds)):
            if a < b:
                arguments = (lefts[w].view(1, -1), integrals[a:b], velocities[w].flatten(1))
                if samples._order is None and dtype == velocities.dtype:
                    torch.addmm(*arguments, out=p[a:b].view(b - a, -1))
                else:
                    samples._put(p, a, b, torch.addmm(*arguments).view(b - a, *start.shape))
        if dtype != velocities.dtype:
            finite = p.isfinite().flatten(1).all(1)
            if not bool(finite.all()):
                raise FlowDiverged(float(times[~finite].min()), f"p is too large for {dtype}")
        return p

    @staticmethod
    @refuse_second_derivatives("collocation", DISCRETE)
    @backward_in_full_precision
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        samples, (velocities, *_), g = ctx.samples, ctx.saved_tensors, cotangents[0]
        mesh, bounds, x, integrals = samples._mesh, samples._bounds, samples._x, samples._integrals
        values = None
        if ctx.needs_input_grad[4]:
            values = gauss_rule(NODES).evaluation(x).to(velocities.device, velocities.dtype)
        result = torch.empty(velocities.shape, dtype=velocities.dtype, device=velocities.device)
        times = torch.zeros_like(samples._times) if values is not None else None
        right = samples._edges.new_zeros(velocities.shape[2:])
        for w in reversed(range(len(mesh))):
            a, b = bounds[w], bounds[w + 1]
            interval_cotangents = samples._take(g, a, b).to(velocities.dtype).reshape(b - a, right.numel())
            base = torch.mm(mesh.weights[w].unsqueeze(1), right.to(velocities.dtype).view(1, -1))
            torch.addmm(base, integrals[a:b].T, interval_cotangents, out=result[w].view(NODES, -1))
            right = right + interval_cotangents.sum(0).view_as(right)
            if values is not None and times is not None:
                rates = torch.mm(values[a:b], velocities[w].flatten(1))
                samples._put(times, a, b, (rates * interval_cotangents).sum(1).to(times.dtype))
        return None, None, right, result, times
