"""FlowEncoder: one field, a starting vector per block and name, position vectors at any times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn

from floater.flow.changes import stamp
from floater.flow.collocation import dense
from floater.flow.errors import FlowError, SpanTooLong
from floater.flow.field import ScaledField
from floater.flow.nonblocking import sent, settle
from floater.flow.piecewise import Dense
from floater.flow.plan import forget_plans
from floater.flow.solver import COLLOCATION, check_options, solve
from floater.flow.stepping import wide_dtype
from floater.flow.store import Store
from floater.flow.vectors import FlowVectors, check_positions, consecutive, distinct

_LOOK_AHEAD = 64
_STRIDE = 1.05


class FlowEncoder(nn.Module):
    """Position vectors from one dynamical system shared by all blocks.

    Source: Liu, Yu, Dhillon, Hsieh, "Learning to Encode Position for Transformer with Continuous
    Dynamical Model" (2020), equations 8, 10 and 15, section 4.4. All starting vectors are one batch
    of rows in one solve at the sorted distinct positions; position i stands at time
    i x delta x time_scale, so the first position of a text, 0, gets the starting vector itself.

    Real positions (a floating dtype), such as the times of events, are solved once as a curve where the
    method is collocation and its gradient not recomputed. The vectors of a block and name are read from it
    when they are asked for: thousands of different positions cost no more solving than the span that they
    cover. Gradients flow to the field, the starting vectors, a learned time scale and the positions; without
    such a curve, to positions only of one rising row.

    In training mode, a flow whose parameters all have `requires_grad` off is solved once and stored, as after
    `freeze`.

    Args:
        field: The field h(t, p), shared by all rows.
        dim: Size of a position vector.
        blocks: The blocks that have starting vectors of their own.
        names: The names of the starting vectors in each block, such as ("q", "k", "v").
        delta: Time between two neighbouring positions.
        time_scale: A factor on all times.
        learn_time_scale: Whether that factor is learned (its logarithm is the parameter).
        method, rtol, atol, step, gradient: See `floater.flow.solve`.
        refresh_every: In training mode, solve on one call in so many and reuse the vectors, without
            gradient, on the calls between (section 4.4). One forward pass of a model is one call.
        horizon: A position that every curve reaches. Positions that differ from call to call, as random
            times do, are then read from curves of one span, whose plan is kept. Whole positions are read
            from the curve, too. None solves as far as positions are asked for.

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
            if not 0 < value < math.inf:
                raise ValueError(f"{what} must be a positive number, got {value}")
        if refresh_every < 1:
            raise ValueError(f"refresh_every must be at least 1 call, got {refresh_every}")
        if horizon is not None and not 0 < horizon < math.inf:
            raise ValueError(f"horizon must be a positive position, got {horizon}")
        self.field, self.dim, self.delta = field, dim, delta
        self.blocks, self.names = tuple(blocks), tuple(names)
        self.refresh_every, self.horizon = refresh_every, horizon
        self.solver: dict[str, Any] = {
            "method": method,
            "rtol": rtol,
            "atol": atol,
            "step": step,
            "gradient": gradient,
        }
        check_options(field, **self.solver)
        self._keys = {(b, n): i for i, (b, n) in enumerate((b, n) for b in self.blocks for n in self.names)}
        self._time_scale = time_scale
        self.start = nn.Parameter(torch.empty(len(self.blocks), len(self.names), dim))
        self.log_time_scale = nn.Parameter(torch.empty(())) if learn_time_scale else None
        self._store: Store | None = None
        self._curve: Dense | None = None
        self._known: list[tuple[nn.Parameter, tuple[int, int]]] = []
        self._calls = 0
        self._baked = self._frozen = False
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the starting vectors anew (normal, standard deviation 0.02) and reset the time scale."""
        nn.init.normal_(self.start, std=0.02)
        if self.log_time_scale is not None:
            nn.init.constant_(self.log_time_scale, math.log(self._time_scale))

    @property
    def time_scale(self) -> float:
        """The factor on all times, as it stands."""
        return self._time_scale if self.log_time_scale is None else float(self.log_time_scale.detach().exp())

    def forward(self, positions: Tensor) -> FlowVectors:
        """Position vectors at any positions.

        Args:
            positions: (N, T), integer or real, in any order, repeated or not; N is 1 when all samples
                of a batch share them.

        Returns:
            The vectors of all blocks and names.

        Raises:
            ValueError: if the positions are not two-dimensional, one is negative or not finite, or they have
                no gradient.
            RuntimeError: in training mode, with gradients on, after `bake`.
            FlowError: if the solve fails.
            SpanTooLong: if it fails for real positions, past their beginning.
        """
        positions = _nearby(positions)
        check_positions(positions)
        real = (positions.is_floating_point() or self.horizon is not None) and self._draws_curves
        if self._baked and not self._frozen and self.training and torch.is_grad_enabled():
            raise RuntimeError(
                "a baked FlowEncoder gives no gradients: call unbake() before training, or freeze()"
            )
        if self._frozen or self._baked or (self.training and self._rests and not positions.requires_grad):
            self._renew()
            return self._read(positions, held=True) if real else self._stored(positions, ahead=True)
        if not self.training or self.refresh_every == 1:
            return self._read(positions) if real else self._solved(positions)[0]
        known = self._curve if real else self._store
        passes = torch.is_grad_enabled()
        solves = known is None or (passes and self._calls % self.refresh_every == 0)
        self._calls += passes
        if real:
            if solves:
                self._curve = None
            return self._read(positions, held=not solves, keep=True)
        if not solves:
            return self._stored(positions, ahead=False)
        self._store = None
        vectors, wanted, values = self._solved(positions)
        settle()  # what is kept must be right
        with torch.inference_mode(False):
            self._store = Store(wanted.clone(), values.detach().transpose(0, 1).clone())
        return vectors

    @property
    def _draws_curves(self) -> bool:
        method, _ = check_options(self.field, **self.solver)
        return method == COLLOCATION and self.solver["gradient"] == "discrete"

    def stored(self, positions: Tensor) -> FlowVectors:
        """Position vectors without gradient, from the store; it grows by what it lacks.

        Changed parameters empty the store; a write through `.data` is not seen, here and where it is baked.

        Args:
            positions: As of a call.

        Returns:
            As a call does.

        Raises:
            ValueError: if the positions are not two-dimensional, or one is negative or not finite.
            FlowError: if the solve fails.
        """
        positions = _nearby(positions)
        check_positions(positions)
        self._renew()
        return self._stored(positions, ahead=True)

    def bake(self, length: int) -> None:
        """Store the vectors of positions 0, ..., length - 1 for inference (section 4.4).

        A longer input extends the store and leaves what it holds unchanged. Changed parameters empty
        it, but a write through `.data` is not seen: `unbake` first. It is no part of the state_dict.

        Args:
            length: Number of positions, at least 1.

        Raises:
            ValueError: if length is less than 1.
        """
        if not isinstance(length, int) or length < 1:
            raise ValueError(f"length must be a whole number of at least 1 position, got {length!r}")
        self.unbake()
        self._baked, self._known = True, self._versions()
        self._filled(length)

    def unbake(self) -> None:
        """Forget the stored vectors and solve on every call again."""
        self._baked = False
        self._forget()

    @contextmanager
    def baked(self) -> Iterator[FlowEncoder]:
        """Bake for the duration of a `with` block, as far as positions are asked for.

        Example:
            >>> from floater.flow import ZeroField
            >>> encoder = FlowEncoder(ZeroField(), 2, blocks=[0], names=["q"]).eval()
            >>> with encoder.baked():
            ...     step = [encoder(torch.tensor([[i]])).at(0, "q") for i in range(3)]
            >>> torch.equal(step[0], step[2])
            True
        """
        if self._baked or self._frozen:
            yield self
            return
        kept = self._store, self._curve, self._known  # what is kept may be outdated by then
        self._forget()
        self._baked = True
        try:
            yield self
        finally:
            (self._store, self._curve, self._known), self._baked = kept, False

    def refresh(self) -> None:
        """Forget what training steps leave behind: vectors to reuse, the plan of a solve.

        The next step is then that of an encoder just loaded. Called at each checkpoint, it makes a run
        that is resumed there end with the weights of one that was not stopped.
        """
        forget_plans(self.field)
        self._calls = 0
        if not (self._baked or self._frozen):
            self._forget()

    def freeze(self) -> None:
        """Train the flow no further: no gradients, vectors solved once and stored, in training mode too."""
        self.requires_grad_(False)
        self._frozen = True
        self._forget()

    def unfreeze(self) -> None:
        """Train the field, the starting vectors and the time scale (again)."""
        self.requires_grad_(True)
        self._frozen = False
        self._forget()

    def _renew(self) -> None:
        """Forget what was stored if the parameters have changed."""
        versions = self._versions()
        if len(self._known) != len(versions) or any(
            one is not other or before != now
            for (one, before), (other, now) in zip(self._known, versions, strict=True)
        ):
            self._forget()
            self._known = versions

    def _forget(self) -> None:
        self._store, self._curve = None, None

    def _read(self, positions: Tensor, *, held: bool = False, keep: bool = False) -> FlowVectors:
        """Vectors at real positions, read from a curve.

        Args:
            positions: (N, T).
            held: read, without gradients, from the curve held, after solving for one that reaches as far.
            keep: hold a curve solved for these positions, for the next calls.
        """
        with torch.inference_mode(False) if held or keep else nullcontext():
            times = positions.flatten().to(wide_dtype(positions.device))
            if self.log_time_scale is None:
                times = times * (self.delta * self._time_scale)
            else:
                wide = wide_dtype(self.start.device)
                unit = self.delta * self.log_time_scale.to(wide).exp()
                times = sent(times, self.start.device, wide) * unit
            last = max(float(positions.detach().max()), self.horizon or 1)
            end = max(float(times.detach().max()), last * self.delta * self.time_scale)
            if self.horizon is not None and self.log_time_scale is not None:
                # a scale that grows at every step would need a new plan at every step
                end = _STRIDE ** math.ceil(math.log(end, _STRIDE))
            curve = self._curve if held else None
            if curve is None or curve.end < end:
                with torch.set_grad_enabled(torch.is_grad_enabled() and not held):
                    curve = self._solve_curve(end, last, ahead=held and self.horizon is None)
                if keep:
                    settle()
                if held or keep:
                    self._curve = curve.detach()
            vectors = curve.read(times.detach() if held else times)
            return FlowVectors(vectors, positions.shape, self._keys, self.start.dtype)

    def _solve_curve(self, end: float, last: float, *, ahead: bool) -> Dense:
        """The flow from 0 to `end`, where the last position stands, or as far again if `ahead`."""
        settle(wait=False)  # a flow that failed before is not this one
        tolerances = {name: self.solver[name] for name in ("rtol", "atol")}
        start = self.start.flatten(0, 1)
        if ahead and (self._baked or self._frozen):
            with suppress(FlowError):  # it may blow up where nobody asked
                return dense(self.field, start, 2 * end, **tolerances)
        try:
            return dense(self.field, start, end, **tolerances)
        except FlowError as error:
            if not error.time > 0:
                raise
            scale = self.time_scale * error.time / end
            raise SpanTooLong(error.time, error.reason, last, scale) from error

    def _solve(self, wanted: Tensor, start: Tensor | None = None, begin: float = 0.0) -> Tensor:
        """Vectors (U, rows, dim) at increasing positions, from the state (rows, dim) at position `begin`."""
        state = self.start.flatten(0, 1) if start is None else start
        field, unit = self.field, self.delta
        if self.log_time_scale is None:
            unit = self.delta * self._time_scale
        else:
            field = ScaledField(self.field, self.log_time_scale)
        return solve(field, state, wanted * unit, begin=begin * unit, **self.solver)

    def _solved(self, positions: Tensor) -> tuple[FlowVectors, Tensor, Tensor]:
        """Solve at the distinct positions; also returns these and the values (U, rows, dim)."""
        wanted, index = distinct(positions)
        if positions.requires_grad and isinstance(index, Tensor):
            raise ValueError(
                "positions that repeat or do not rise in one row have gradients with a smooth field, "
                "method='collocation' and gradient='discrete' only"
            )
        values = self._solve(wanted)
        # One unbind: a backward pass through a selection per row would be quadratic in the rows.
        return self._vectors(values.unbind(1), index), wanted, values

    def _stored(self, positions: Tensor, ahead: bool) -> FlowVectors:
        """Take vectors from the store, after solving for those it lacks and maybe for some to come."""
        with torch.inference_mode(False), torch.no_grad():
            store = self._filled(1) if self._store is None else self._store
            if store.dense and not positions.is_floating_point():
                known = consecutive(positions.long())
                last = known.stop - 1 if isinstance(known, slice) else int(known.max())
                if last < len(store.positions):
                    return self._vectors(store.values.unbind(0), known)
            wanted, index = distinct(positions)
            at, held = store.find(wanted)
            if not bool(held.all()):
                store = self._extended(store, wanted[~held], ahead)
                at, _ = store.find(wanted)
            return self._vectors(store.values.unbind(0), consecutive(at[index].reshape(positions.shape)))

    def _extended(self, store: Store, missing: Tensor, ahead: bool) -> Store:
        """A store that holds the missing positions, too; kept if these are whole numbers.

        Real positions between whole ones seldom recur and would fill the memory. A dense store stays
        dense unless that takes more than twice its length, and looks ahead, since decoding asks for
        one position at a time.
        """
        size, top = len(store.positions), float(missing[-1])
        whole = bool((missing == missing.floor()).all())
        if whole and store.dense and top < 2 * size + _LOOK_AHEAD:
            missing = torch.arange(size, int(top) + 1).to(missing)
            if len(missing) < _LOOK_AHEAD and ahead:
                to_come = torch.arange(size, size + _LOOK_AHEAD).to(missing)
                with suppress(FlowError):  # it may blow up where nobody asked
                    return self._grown(store, to_come, keep=True)
        return self._grown(store, missing, keep=whole)

    def _grown(self, store: Store, missing: Tensor, keep: bool) -> Store:
        """Solve for the missing positions, from the store's last state if all lie beyond it."""
        last = float(store.positions[-1])
        if float(missing[0]) > last:
            values = self._solve(missing, store.values[:, -1], last)
        else:
            values = self._solve(missing)
        store = store.merged(missing, values.transpose(0, 1))
        if keep:
            self._store = store
        return store

    def _filled(self, length: int) -> Store:
        """A new store of positions 0, ..., length - 1."""
        with torch.inference_mode(False), torch.no_grad():
            wanted = torch.arange(length, dtype=torch.float64)
            self._store = Store(wanted, self._solve(wanted).transpose(0, 1).contiguous())
        return self._store

    def _vectors(self, rows: Sequence[Tensor], index: Tensor | slice) -> FlowVectors:
        if isinstance(index, Tensor):
            index = sent(index, self.start.device)
        return FlowVectors(rows, index, self._keys, self.start.dtype)

    def _all_parameters(self) -> Iterator[nn.Parameter]:
        """Those that the vectors depend on."""
        return self.parameters()

    @property
    def _rests(self) -> bool:
        """Whether no parameter is trained, and each tells when it is written to."""
        return not any(p.requires_grad or p.is_inference() for p in self._all_parameters())

    def _versions(self) -> list[tuple[nn.Parameter, tuple[int, int]]]:
        """What changes whenever a parameter is replaced or written to."""
        return [(p, stamp(p)) for p in self._all_parameters()]

    def __getstate__(self) -> dict[str, Any]:
        # A copy has parameters of its own, whose writes are counted from the start.
        return self.__dict__ | {"_store": None, "_curve": None, "_known": []}

    def _apply(self, fn: Any, recurse: bool = True) -> FlowEncoder:
        self._forget()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._forget()
        super()._load_from_state_dict(*args, **kwargs)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, blocks={self.blocks}, names={self.names}, delta={self.delta}"


def _nearby(positions: Tensor) -> Tensor:
    """Positions on the CPU, unless gradients flow to them: read there, they cost a GPU one wait, not ten."""
    return positions if positions.requires_grad else positions.to("cpu")
