"""The error of a solution: the defect of its polynomials, and its propagation by the flow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from floater.flow.collocation.fixed_point import NotConverged, solve_states
from floater.flow.collocation.formulation import Formulation, rate
from floater.flow.collocation.mesh import Mesh, mesh_of
from floater.flow.collocation.preactivation_form import PreactivationForm, layers_of, linear
from floater.flow.collocation.quadrature import NODES, gauss_rule

# Relative change at which the iterations for an error end: only its size is needed.
_ENOUGH = 0.2
# The largest change of a unit's argument for which its activation is taken as linear. Second derivatives of
# all activations are below one, so that the term left out is a twentieth of the change at most.
_LINEAR = 0.1
# Nodes of an interval for the equation of the error. Collocation at four has order eight.
_NODES = 4
# Points of a rule of half an interval where the velocity is known to be smooth between the nodes of the
# solution: a velocity whose eighth Legendre coefficient is small is then integrated exactly.
_POINTS = 5
# Intervals whose defects are computed at a time, to bound the memory of wide tensors.
_PART = 32


class Solved(NamedTuple):
    """The values of a solution at the nodes and edges of its mesh.

    Args:
        mesh: The mesh.
        states: y at the nodes (n, N, rows, width).
        velocities: dp/dt at the nodes (n, N, rows, dim).
        edges: p at the edges (n + 1, rows, dim), wide.
    """

    mesh: Mesh
    states: Tensor
    velocities: Tensor
    edges: Tensor


@torch.no_grad()
def solve_changes(
    field: nn.Module, form: Formulation, solved: Solved, perturbation: Tensor | None = None
) -> Tensor | None:
    """Solve the equation of the error of a solution, on its own mesh.

    If p are the computed polynomials and p + e is the exact solution, e' = h(t, p + e) - h(t, p) + d. The
    defect d = h(t, p) - p' is whatever p misses: rounding, the last change of the iterations, and what h does
    between the nodes. Its integral over an interval is computed in the wide dtype by two Gauss rules, one for
    each half, none of whose points is a node. Only the leading digits of e are needed, so a few iterations
    with few nodes suffice.

    Args:
        field: The field.
        form: Its formulation, not implicit.
        solved: The solution.
        perturbation: Change of the start (rows, dim) whose effect is computed too.

    Returns:
        The exact solution minus the computed one at the right edges of all intervals, and the change by the
        perturbation: (1 or 2, n, rows, dim), wide. None if an error is too large for a linear equation, or
        does not converge.
    """
    errors: _Errors
    if isinstance(form, PreactivationForm):
        errors = _UnitErrors(field, form, solved)
    else:
        errors = _VectorErrors(form, solved)
    starts = [torch.zeros_like(solved.edges[0])]
    if perturbation is not None:
        starts.append(perturbation.to(starts[0]))
    parts = (slice(w, w + _PART) for w in range(0, len(solved.mesh), _PART))
    defects = torch.cat([errors.defects(part) for part in parts])
    errors.begin(torch.stack(starts), defects)
    try:
        changes, _ = solve_states(errors, errors.mesh, _ENOUGH, torch.finfo(errors.dtype).tiny)
    except NotConverged:
        return None
    changes = changes.view(*changes.shape[:2], len(starts), -1, changes.shape[-1])
    if not errors.valid(changes[:, :, 0]):
        return None
    return errors.after(changes)


class _Errors(ABC):
    """The system of changes of y that `solve_states` solves, those of all k starts as rows of one state.

    Args:
        solved: The solution.
        dtype: The dtype of the arithmetic.
        points: Points of the rule by which the defect of half an interval is integrated.
    """

    start: Tensor

    def __init__(self, solved: Solved, dtype: torch.dtype, points: int) -> None:
        edges, device, depth = solved.edges, solved.edges.device, solved.mesh.depth
        self.mesh = mesh_of(tuple(solved.mesh.edges), depth, dtype, device, _NODES)
        self.dtype, self._solved, self._times = dtype, solved, self.mesh.times.flatten()
        half = gauss_rule(points, device, edges.dtype)
        self._points = torch.cat((half.nodes / 2, (1 + half.nodes) / 2))
        self._weights = torch.cat((half.weights, half.weights)) / 2
        self._lefts = edges.new_tensor(solved.mesh.edges)[:-1]
        self._lengths = edges.new_tensor(solved.mesh.edges).diff()

    def begin(self, starts: Tensor, defects: Tensor) -> None:
        """Set changes of p at the beginning (k, rows, dim) and the defects (n, rows, dim) of the first."""
        self._starts, self._defects = starts, defects
        self.start = self.lifted(starts).flatten(0, 1)
        self._forcing = self.lifted(defects) / self.mesh.lengths.view(-1, 1, 1)

    @abstractmethod
    def lifted(self, p: Tensor) -> Tensor:
        """Return the changes of y (..., width) that changes of p (..., dim) are."""

    @abstractmethod
    def defects(self, part: slice) -> Tensor:
        """Return the integrals of the defect over m intervals (m, rows, dim), wide."""

    @abstractmethod
    def response(self, nodes: Tensor, changes: Tensor) -> Tensor:
        """Return the changes of f at nodes with these indices (m,) by changes of y (m, k, rows, width)."""

    @abstractmethod
    def valid(self, errors: Tensor) -> bool:
        """Return whether errors (n, nodes, rows, width) are small enough for the equation."""

    @abstractmethod
    def after(self, changes: Tensor) -> Tensor:
        """Return changes of p at right edges (k, n, rows, dim) from those of y (n, nodes, k, rows, width)."""

    def time_term(self, times: Tensor) -> Tensor:
        return times.new_zeros(len(times), self.start.shape[1], dtype=self.dtype)

    def state_term(self, times: Tensor, states: Tensor) -> Tensor:
        nodes = torch.searchsorted(self._times, times)
        f = self.response(nodes, states.view(len(states), len(self._starts), -1, states.shape[-1]))
        f[:, 0] += self._forcing[nodes // _NODES]
        return f.flatten(1, 2)

    def _polynomials(self, points: Tensor, part: slice, left: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate the polynomials of some intervals.

        Args:
            points: Relative positions in an interval (k,).
            part: The m intervals.
            left: The values at their left edges (m, rows, width), wide.
            rates: The derivatives at their nodes (m, N, rows, width).

        Returns:
            The times (m, k) and the values (m, k, rows, width), wide.
        """
        lengths = self._lengths[part]
        matrix = gauss_rule(NODES).integration(points.to("cpu", torch.float64)).to(left)
        moved = torch.matmul(matrix, rates.flatten(2).to(left)).view(len(left), len(points), *left.shape[1:])
        times = self._lefts[part].unsqueeze(1) + lengths.unsqueeze(1) * points
        return times, moved.mul_(lengths.view(-1, 1, 1, 1)).add_(left.unsqueeze(1))

    def _integral(self, part: slice, values: Tensor) -> Tensor:
        """Integrate values at the points (m, k, rows, width) over each interval: (m, rows, width)."""
        integral = torch.matmul(self._weights, values.flatten(2)).view_as(values[:, 0])
        return integral * self._lengths[part].view(-1, 1, 1)


class _UnitErrors(_Errors):
    """Changes of the preactivations of an `MLPField`, linear: e' = M (s'(z) e) + W1 d."""

    def __init__(self, field: nn.Module, form: PreactivationForm, solved: Solved) -> None:
        smooth = getattr(field, "smooth", None) is not False
        super().__init__(solved, form.dtype, _POINTS if smooth else NODES)
        self._form, self._layers = form, layers_of(field, solved.edges.dtype)
        self._rates = solved.mesh.at_nodes(partial(rate, form), solved.states)
        to_nodes = gauss_rule(NODES).evaluation(gauss_rule(_NODES).nodes).to(solved.states)
        z = torch.matmul(to_nodes, solved.states.flatten(2))
        self._slopes = form.slopes(z.view(-1, *solved.states.shape[2:]))

    def lifted(self, p: Tensor) -> Tensor:
        return torch.matmul(p, self._layers.inner[:, :-1].T).to(self.dtype)

    def defects(self, part: slice) -> Tensor:
        layers, edges, lengths = self._layers, self._solved.edges, self._lengths[part]
        left = linear(layers.inner, layers.inner_bias, self._lefts[part], edges[:-1][part])
        _, z = self._polynomials(self._points, part, left, self._rates[part])
        s = self._integral(part, layers.activate(z).add_(layers.shift))
        # The mean of W2 s + u2 t + b2 over an interval is that of the means of s and t.
        by_length = lengths.view(-1, 1, 1)
        middle = self._lefts[part] + lengths / 2
        mean = linear(layers.outer, layers.outer_bias, middle, s / by_length)
        return mean * by_length - edges.diff(dim=0)[part]

    def response(self, nodes: Tensor, changes: Tensor) -> Tensor:
        return self._form.times_matrix(changes * self._slopes[nodes].unsqueeze(1))

    def valid(self, errors: Tensor) -> bool:
        return bool(errors.abs().amax() < _LINEAR)

    def after(self, changes: Tensor) -> Tensor:
        slopes = self._slopes.view(*changes.shape[:2], 1, *changes.shape[3:])
        s = torch.einsum("nj,njkrw->nkrw", self.mesh.weights, changes * slopes)
        moved = torch.matmul(s, self._layers.outer[:, :-1].T.to(s)).to(self._starts)
        moved[:, 0] += self._defects
        return self._starts.unsqueeze(1) + moved.cumsum(0).transpose(0, 1)


class _VectorErrors(_Errors):
    """Changes of the vectors of any field: differences of evaluations in the wide dtype."""

    def __init__(self, form: Formulation, solved: Solved) -> None:
        edges = solved.edges
        super().__init__(solved, edges.dtype, NODES)
        self._form = form.implicit_form(edges[0])
        nodes = gauss_rule(_NODES, edges.device, edges.dtype).nodes
        self._p = self._polynomials(nodes, slice(None), edges[:-1], solved.velocities)[1].flatten(0, 1)
        self._velocities = self._form.state_term(self._times, self._p)

    def lifted(self, p: Tensor) -> Tensor:
        return p

    def defects(self, part: slice) -> Tensor:
        edges = self._solved.edges
        times, p = self._polynomials(self._points, part, edges[:-1][part], self._solved.velocities[part])
        h = self._form.state_term(times.flatten(), p.flatten(0, 1)).view_as(p)
        return self._integral(part, h) - edges.diff(dim=0)[part]

    def response(self, nodes: Tensor, changes: Tensor) -> Tensor:
        p = (self._p[nodes].unsqueeze(1) + changes).flatten(0, 1)
        times = self._times[nodes].repeat_interleave(changes.shape[1])
        h = self._form.state_term(times, p).view_as(changes)
        return h - self._velocities[nodes].unsqueeze(1)

    def valid(self, errors: Tensor) -> bool:
        return True

    def after(self, changes: Tensor) -> Tensor:
        to_end = gauss_rule(_NODES).evaluation(torch.ones((), dtype=torch.float64, device="cpu")).to(changes)
        return torch.einsum("j,njkrw->knrw", to_end, changes)
