"""FlowEncoder: one field, a starting vector per block and name, position vectors at any times."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from floater.flow.cache import VectorCache, VectorTable
from floater.flow.checks import FIXED_STEP_METHODS, check_length
from floater.flow.collocation.plan import SolverState
from floater.flow.collocation.solution import Solution
from floater.flow.collocation.solver import solve_dense
from floater.flow.compiled import number, opaque
from floater.flow.dynamics import check_module
from floater.flow.errors import FlowError, SpanTooLong
from floater.flow.precision import wide_dtype
from floater.flow.sharing import SharedSolve
from floater.flow.solve import COLLOCATION, PAPER_STEPS, check_options, solve
from floater.flow.vector_fields import ScaledField
from floater.flow.vectors import FlowVectors, check_norms, checked, distinct

# Steps in which the span of a learned time scale grows: a new mesh every 5 %, and at most 5 % too much of it.
_STRIDE = 1.05


class FlowEncoder(nn.Module):
    """Position vectors from one dynamical system shared by all blocks.

    Source: Liu, Yu, Dhillon, Hsieh, "Learning to Encode Position for Transformer with Continuous
    Dynamical Model" (2020), equations 8, 10 and 15, section 4.4. All starting vectors are one batch
    of rows in one solve at the sorted distinct positions; position i has the time
    i x delta x time_scale, so the first position of a text, 0, gets the starting vector itself.

    With collocation, real positions (a floating dtype), such as the times of events, are solved once as a
    curve. The vectors of a block and name are evaluated on demand: thousands of different positions cost no
    more solving than the span that they cover. Gradients flow to the field, the starting vectors, a learned
    time scale and the positions; without such a curve, positions have gradients only in one rising row.

    In training mode, a flow whose parameters all have `requires_grad` off is solved once and stored.

    Args:
        field: The field h(t, p), shared by all rows.
        dim: Size of a position vector.
        blocks: The blocks that have starting vectors of their own.
        names: The names of the starting vectors in each block, such as ("q", "k", "v").
        delta: Time between two neighbouring positions.
        time_scale: A factor on all times.
        learn_time_scale: Whether that factor is learned (its logarithm is the parameter).
        method, rtol, atol, gradient: See `floater.flow.solve`.
        step: Longest step of a fixed-step method; delta / 5 (appendix B.1) if not given.
        refresh_every: In training mode, solve on every n-th call and reuse the vectors, without gradient,
            on the calls between (section 4.4). One forward pass of a model is one call; after
            `begin_step`, which `floater.lab.training` calls, all passes of a step count as one.
        horizon: A position that every curve reaches. Positions that differ from call to call, as random
            times do, are then read from curves of one span, whose plan is kept. Whole positions are read
            from the curve, too. None solves up to the last position of a call.

    Raises:
        ValueError: if blocks or names are empty or repeat, or a number is out of its range.

    Example:
        >>> from floater.flow import MLPField
        >>> encoder = FlowEncoder(MLPField(8), 8, blocks=range(2), names=("q", "k"))
        >>> vectors = encoder(torch.arange(5).unsqueeze(0))
        >>> vectors.at(1, "k").shape
        torch.Size([1, 5, 8])
        >>> torch.equal(vectors.at(0, "q")[0, 0], encoder.start[0, 0])
        True
    """

    start: nn.Parameter

    def __init__(
        self,
        field: nn.Module,
        dim: int,
        *,
        blocks: Sequence[int],
        names: Sequence[str],
        delta: float = 0.1,
        time_scale: float = 1.0,
        learn_time_scale: bool = False,
        method: str = "auto",
        rtol: float = 1e-6,
        atol: float = 1e-6,
        step: float | None = None,
        gradient: str = "discrete",
        refresh_every: int = 1,
        horizon: float | None = None,
    ) -> None:
        super().__init__()
        for what, entries in (("blocks", blocks), ("names", names)):
            if not entries or len(set(entries)) != len(entries):
                raise ValueError(f"{what} must be distinct and not empty, got {list(entries)}")
        for what, value in (("delta", delta), ("time_scale", time_scale)):
            if not isinstance(value, Real) or not 0 < value < math.inf:
                raise ValueError(f"{what} must be a positive number, got {value!r}")
        if refresh_every < 1:
            raise ValueError(f"refresh_every must be at least 1 call, got {refresh_every}")
        if horizon is not None and not 0 < horizon < math.inf:
            raise ValueError(f"horizon must be a positive position, got {horizon}")
        self.field, self.dim, self.delta = field, dim, delta
        self.blocks, self.names = tuple(blocks), tuple(names)
        self.refresh_every, self.horizon = refresh_every, horizon
        if step is None and method in FIXED_STEP_METHODS:
            step = delta / PAPER_STEPS
        self.solver: dict[str, Any] = {
            "method": method,
            "rtol": rtol,
            "atol": atol,
            "step": step,
            "gradient": gradient,
        }
        check_module(field)
        check_options(field, **self.solver)
        self._keys = {(b, n): i for i, (b, n) in enumerate((b, n) for b in self.blocks for n in self.names)}
        self._time_scale = time_scale
        self.start = nn.Parameter(torch.empty(len(self.blocks), len(self.names), dim))
        self.log_time_scale = nn.Parameter(torch.empty(())) if learn_time_scale else None
        self.solver_state = SolverState()
        self._cache = VectorCache()
        self._shared: SharedSolve | None = None
        self._baked = self._by_step = False
        self._number = number(self)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the starting vectors (normal, standard deviation 0.02) and the time scale."""
        nn.init.normal_(self.start, std=0.02)
        if self.log_time_scale is not None:
            nn.init.constant_(self.log_time_scale, math.log(self._time_scale))

    @property
    def time_scale(self) -> float:
        """Return the current factor on all times."""
        return self._time_scale if self.log_time_scale is None else float(self.log_time_scale.detach().exp())

    def forward(self, positions: Tensor, *, below: int | None = None) -> FlowVectors:
        """Return position vectors at any positions.

        Compiled code has the whole call as one operator, `floater.flow.compiled.opaque`.

        Args:
            positions: (N, T), integer or real, in any order, repeated or not; N is 1 when all samples
                of a batch share them.
            below: A bound of the positions, which are whole numbers from 0 to `below` - 1: in compiled code
                and on a device that would have to be waited for, each of these is solved for once. None
                solves for the positions alone; in compiled code for all N T, whose values are unknown.

        Returns:
            The vectors of all blocks and names.

        Raises:
            ValueError: if the positions are not two-dimensional, one is negative or not finite, or they have
                no gradient.
            RuntimeError: in training mode, with gradients on, after `bake`, or where FSDP1 has replaced the
                parameters by plain tensors; in `torch.export` without `bake`; with parameters on the device
                "meta".
            FlowError: if the solve fails.
            SpanTooLong: if it fails for real positions, past their beginning.
        """
        if torch.compiler.is_compiling():
            return self._traced(positions, below)
        if below is not None and isinstance(positions, Tensor) and positions.device.type != "cpu":
            return self.forward(torch.arange(below, device="cpu")[None]).picked(positions)
        positions = checked(positions)
        if self.start.is_meta:
            raise RuntimeError("the flow is on the device 'meta', which has no values: load them")
        if self._baked and self.training and torch.is_grad_enabled() and self._learns:
            raise RuntimeError(
                "a baked flow gives no gradients: call unbake() before training, or requires_grad_(False)"
            )
        real = (positions.is_floating_point() or self.horizon is not None) and self._solves_densely
        if self.stores and (self._baked or not positions.requires_grad):
            with self._validated():
                return (
                    self._sampled(positions, cached=True) if real else self._looked_up(positions, ahead=True)
                )
        if not self.training or self.refresh_every == 1:
            return self._sampled(positions) if real else self._solved(positions)[0]
        # Vectors are reused for some calls (section 4.4). Only calls with gradients count.
        self._cache.trust_nothing()
        reusable = self._cache.solution if real else self._cache.table
        # A gradient checkpoint runs its part again within the backward pass: the same call, not another.
        in_backward = torch._C._current_graph_task_id() >= 0
        counted = self._by_step or (in_backward and self._cache.counted_in_forward)
        turn = self._cache.calls - counted
        solves = reusable is None or (torch.is_grad_enabled() and turn % self.refresh_every == 0)
        if torch.is_grad_enabled() and not counted:
            self._cache.calls += 1
            self._cache.counted_in_forward = not in_backward
        if real:
            if solves:
                self._cache.solution = None
            return self._sampled(positions, cached=not solves, keep=True)
        if not solves:
            return self._looked_up(positions, ahead=False)
        self._cache.table = None
        vectors, wanted, values = self._solved(positions)
        with torch.inference_mode(False):
            self._cache.table = VectorTable(wanted.clone(), values.detach().transpose(0, 1).clone())
        return vectors

    @property
    def stores(self) -> bool:
        """Return whether vectors come from the cache, without gradient."""
        return self._baked or (self.training and not self._learns)

    @property
    def _learns(self) -> bool:
        return any(parameter.requires_grad for parameter in self._all_parameters())

    @property
    def _solves_densely(self) -> bool:
        method, _ = check_options(self.field, **self.solver)
        return method == COLLOCATION

    def _traced(self, positions: Tensor, below: int | None) -> FlowVectors:
        """Return vectors where this call becomes part of a compiled or exported program."""
        if torch.compiler.is_exporting():
            return self._exported(positions, below)
        whole = positions if below is None else torch.arange(below, device="cpu").unsqueeze(0)
        vectors = opaque(self._number, whole, self.ordered_parameters())
        return self._vectors(vectors.flatten(1, 2).unbind(1), positions.shape if below is None else positions)

    def _exported(self, positions: Tensor, below: int | None) -> FlowVectors:
        """Return baked vectors, as a part of a program that runs without this library."""
        table = self._cache.table
        if not self._baked or table is None or positions.is_floating_point():
            raise RuntimeError(
                "torch.export takes whole positions of a baked flow: bake(length) each FlowEncoder first"
            )
        if below is not None:
            torch._check(  # type: ignore[no-untyped-call]
                below <= len(table.positions),
                lambda: f"the flow is baked for {len(table.positions)} positions, fewer than {below}",
            )
        return self._vectors(table.values.unbind(0), positions)

    def with_parameters(self, tensors: Sequence[Tensor]) -> FlowEncoder:
        """Return a copy with other parameters, in their order, which shares the state of training steps."""
        pairs = zip(self.ordered_parameters(), tensors, strict=True)
        leaves = {id(parameter): x.detach().requires_grad_(parameter.requires_grad) for parameter, x in pairs}
        twin = copy.deepcopy(self, leaves)
        twin.solver_state = self.solver_state
        if not self.stores:  # vectors of other parameters
            twin._cache = self._cache
        return twin

    def ordered_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the vectors depend on, the starting vectors first."""
        return [self.start, *(other for other in self._all_parameters() if other is not self.start)]

    def stored(self, positions: Tensor) -> FlowVectors:
        """Return position vectors without gradient from the cache, after solving for the missing ones.

        A change of a value that they depend on empties the cache; see `Snapshot`.

        Args:
            positions: Positions (N, T), as for a call.

        Returns:
            The vectors of all blocks and names.

        Raises:
            ValueError: if the positions are not two-dimensional, or one is negative or not finite.
            FlowError: if the solve fails.
        """
        positions = checked(positions)
        with self._validated():
            return self._looked_up(positions, ahead=True)

    def bake(self, length: int) -> None:
        """Cache the vectors of positions 0, ..., length - 1 for inference (section 4.4).

        A longer input extends the cache and keeps its vectors. A change of the parameters, of buffers and
        attributes of the field, or of the options of the solver empties it, so that vectors are solved for
        anew; `floater.flow.snapshot.Snapshot` says what counts as a change. It is not part of the state_dict.
        `torch.export` cannot read values: an exported program has the vectors of the last `bake` or call.

        Args:
            length: Number of positions, at least 1.

        Raises:
            ValueError: if length is less than 1.
        """
        check_length(length)
        self.unbake()
        self._baked = True
        with self._validated():
            self._cache.fill(length, self._solve)

    def unbake(self) -> None:
        """Clear the cache and solve on every call again."""
        self._baked = False
        self._cache.clear()

    @contextmanager
    def baked(self) -> Iterator[FlowEncoder]:
        """Bake for the duration of a `with` block, up to the last position of each call.

        Example:
            >>> from floater.flow import ZeroField
            >>> encoder = FlowEncoder(ZeroField(), 2, blocks=[0], names=["q"]).eval()
            >>> with encoder.baked():
            ...     step = [encoder(torch.tensor([[i]])).at(0, "q") for i in range(3)]
            >>> torch.equal(step[0], step[2])
            True
        """
        if self._baked:
            yield self
            return
        outer, self._cache, self._baked = self._cache, VectorCache(), True
        try:
            yield self
        finally:
            self._cache, self._baked = outer, False

    def begin_step(self, length: int | None = None) -> None:
        """Count the calls until the next step as one: all of them solve, or all of them reuse vectors.

        A step whose batch is divided among several passes thus trains the flow with all of its parts or none.

        Args:
            length: A number of positions for which the passes share one solve; `last_pass` must precede the
                last of them, and `end_step` follow it. None solves in each pass.
        """
        self._shared = None if length is None else SharedSolve(length)
        self._by_step = True
        self._cache.calls += 1

    def last_pass(self) -> None:
        """Let the backward pass to come give the parameters the gradients of the whole step."""
        if self._shared is not None:
            self._shared.last = True

    def end_step(self) -> None:
        """Forget the solve that the passes shared, after the last backward pass and before the update.

        Raises:
            RuntimeError: if the last pass did not call the encoder.
        """
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.check()

    @property
    def holds_vectors(self) -> bool:
        """Return whether the next training step reuses the vectors of an earlier one (`refresh_every`).

        If it does not, `solver_state` is all the state that it takes from earlier steps.
        """
        return self._cache.calls % self.refresh_every != 0

    def refresh(self) -> None:
        """Clear the state of training steps: vectors to reuse, the state of the solver.

        The next step is then that of an encoder just loaded. Called at each checkpoint, it makes a resumed
        run end with the weights of an uninterrupted one.
        """
        self.solver_state.reset()
        self._shared, self._by_step = None, False
        self._cache.calls, self._cache.counted_in_forward = 0, False
        if not self._baked:
            self._cache.clear()

    def _sampled(self, positions: Tensor, *, cached: bool = False, keep: bool = False) -> FlowVectors:
        """Return vectors at real positions, from a solution over their span.

        Args:
            positions: (N, T).
            cached: Whether to read from the cached solution, without gradients; if it ends too early, a new
                one is solved for and cached.
            keep: Whether to cache a new solution, for the next calls.
        """
        with torch.inference_mode(False) if cached or keep else nullcontext():
            times = positions.flatten().to(wide_dtype(positions.device))
            if self.log_time_scale is None:
                times = times * (self.delta * self._time_scale)
            else:
                wide = wide_dtype(self.start.device)
                unit = self.delta * self.log_time_scale.to(wide).exp()
                times = times.to(self.start.device, wide) * unit
            last = max(float(positions.detach().max()), self.horizon or 1)
            end = max(float(times.detach().max()), last * self.delta * self.time_scale)
            if self.horizon is not None and self.log_time_scale is not None:
                # A scale that grows at every step would need a new mesh at every step.
                end = _STRIDE ** math.ceil(math.log(end, _STRIDE))
            solution = self._cache.solution if cached else None
            if solution is None or solution.end < end:
                with torch.set_grad_enabled(torch.is_grad_enabled() and not cached):
                    solution = self._solve_span(end, last, ahead=cached and self.horizon is None)
                if cached or keep:
                    self._cache.solution = solution.detach()
            vectors = solution.sample(times.detach() if cached else times)
            return FlowVectors(vectors, positions.shape, self._keys, self.start.dtype)

    def _solve_span(self, end: float, last: float, *, ahead: bool) -> Solution:
        """Solve from 0 to `end`, the time of the last position, or to twice that if `ahead`."""
        state = self._state()
        options = {name: self.solver[name] for name in ("rtol", "atol")} | {"state": state}
        start = self.start.flatten(0, 1)

        def solved(until: float) -> Solution:
            solution = solve_dense(self.field, start, until, **options)
            times = torch.tensor([t for t in solution.edges if t <= until], device="cpu")
            check_norms(solution.edge_values[: len(times)].to(start.dtype), times, state.largest)
            return solution

        if ahead and self._baked:
            with suppress(FlowError):  # it may diverge beyond the positions of the call
                return solved(2 * end)
        try:
            return solved(end)
        except FlowError as error:
            if not error.time > 0:
                raise
            scale = self.time_scale * error.time / end
            raise SpanTooLong(error.time, error.reason, last, scale) from error

    def _solve(self, wanted: Tensor, start: Tensor | None = None, begin: float = 0.0) -> Tensor:
        """Solve for vectors (U, rows, dim) at increasing positions, from a state (rows, dim) at `begin`."""
        p = self.start.flatten(0, 1) if start is None else start
        field, unit = self.field, self.delta
        if self.log_time_scale is None:
            unit = self.delta * self._time_scale
        else:
            field = ScaledField(self.field, self.log_time_scale)
        times, state = wanted * unit, self._state()
        state.largest = math.inf
        vectors = solve(field, p, times, begin=begin * unit, state=state, **self.solver)
        check_norms(vectors, times, state.largest)
        return vectors

    def _state(self) -> SolverState:
        """Return the state of solves with gradients; those without depend on the parameters alone."""
        return self.solver_state if torch.is_grad_enabled() else SolverState()

    def _solved(self, positions: Tensor) -> tuple[FlowVectors, Tensor, Tensor]:
        """Solve at the distinct positions; also returns these and the values (U, rows, dim)."""
        wanted, index = distinct(positions)
        if positions.requires_grad and isinstance(index, Tensor):
            raise ValueError(
                "positions that repeat or do not rise in one row have gradients by 'collocation' only"
            )
        shared = self.training and self._shared
        values = shared.vectors(wanted, self._solve) if shared else self._solve(wanted)
        # One unbind: a backward pass through a selection per row would be quadratic in the rows.
        return self._vectors(values.unbind(1), index), wanted, values

    def _looked_up(self, positions: Tensor, *, ahead: bool) -> FlowVectors:
        return self._vectors(*self._cache.look_up(positions, self._solve, ahead=ahead))

    def _vectors(self, rows: Sequence[Tensor], index: Tensor | slice | torch.Size) -> FlowVectors:
        if isinstance(index, Tensor):
            index = index.to(self.start.device)
        return FlowVectors(rows, index, self._keys, self.start.dtype)

    def _validated(self) -> AbstractContextManager[None]:
        """Return a context that reads from the cache, after emptying it if it is out of date."""
        return self._cache.validated(
            *(self.field, self.start, self.log_time_scale),
            *(self.delta, self._time_scale, self.solver, self.horizon),
        )

    def _all_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that the vectors depend on."""
        named = self._parameters.keys() & {"start", "start_orig"}  # the latter by pruning
        hidden = not named and not is_parametrized(self, "start")
        if hidden and torch.is_grad_enabled() and self.start.requires_grad:
            raise RuntimeError(
                "a flow has no parameters under FSDP1 with use_orig_params=False, or in nn.DataParallel, and "
                "would not be trained: pass use_orig_params=True, or wrap by fully_shard"
            )
        return self.parameters()

    def __getstate__(self) -> dict[str, Any]:
        # A copy has parameters of its own.
        return self.__dict__ | {"_cache": VectorCache(), "_shared": None, "solver_state": SolverState()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._number = number(self)

    def _apply(self, fn: Any, recurse: bool = True) -> FlowEncoder:
        self._cache.clear()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._cache.clear()
        super()._load_from_state_dict(*args, **kwargs)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, blocks={self.blocks}, names={self.names}, delta={self.delta}"
