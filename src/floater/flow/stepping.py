"""How torchdiffeq is driven: its steps, with outputs and gradients linear in the number of times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torchdiffeq._impl.adjoint import OdeintAdjointMethod, handle_adjoint_norm_
from torchdiffeq._impl.odeint import SOLVERS

from floater.flow.errors import FlowDiverged

ADAPTIVE_METHODS = ("dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun")
# torchdiffeq's Adams methods are left out: they take all steps as equally long, which ours are not.
FIXED_STEP_METHODS = ("rk4", "midpoint", "euler", "heun2", "heun3")

MAX_STEPS = 100_000


def wide_dtype(device: torch.device) -> torch.dtype:
    """The dtype of times and running states: float64 where the device has it (MPS has not)."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Neither autocast nor TF32 or bfloat16 inside float32 products: their digits hold no tolerance of 1e-6.

    Example:
        >>> with torch.autocast("cpu"), full_precision(torch.device("cpu")):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float32
    """
    with torch.autocast(device.type, enabled=False), ExitStack() as restored:
        if hasattr(torch.backends, "fp32_precision"):  # since PyTorch 2.9, whose older functions may refuse
            backends: Any = torch.backends
            for matmul in (backends.cuda.matmul, backends.mkldnn.matmul):
                restored.callback(_choose, matmul, matmul.fp32_precision)
                matmul.fp32_precision = "ieee"
        else:
            restored.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("highest")
        yield


def _choose(matmul: Any, precision: str) -> None:
    """Let a backend's products inherit their precision if that gives the one named, and set it otherwise."""
    matmul.fp32_precision = "none"
    if matmul.fp32_precision != precision:
        matmul.fp32_precision = precision


def norms(x: Tensor) -> Tensor:
    """Euclidean norms over the last dim, in the wide dtype: squares of large float32 numbers overflow.

    Example:
        >>> norms(torch.tensor([3e30, 4e30])) / 1e30
        tensor(5.0000, dtype=torch.float64)
    """
    result: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=wide_dtype(x.device))
    return result


class Dynamics:
    """A field as a solver calls it: the state wide, the field's arithmetic in its own precision.

    Args:
        field: A module with `forward(t, p)`.
        start: The state's beginning, which has a say in the precision.
    """

    def __init__(self, field: nn.Module, start: Tensor) -> None:
        tensors = dict(field.named_parameters()) | dict(field.named_buffers())
        floating = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
        self.out_dtype = dtype = torch.promote_types(torch.float32, start.dtype)
        for tensor in floating.values():
            dtype = torch.promote_types(dtype, tensor.dtype)
        self.field, self.dtype = field, dtype
        self.tensors = {name: tensor.to(dtype) for name, tensor in floating.items()}
        self._converted = any(tensor.dtype != dtype for tensor in floating.values())
        self.time: Tensor | float = 0.0

    def __call__(self, t: Tensor, p: Tensor, perturb: object = None) -> Tensor:
        """The velocity (rows, dim) in the dtype of the state p; `perturb` is torchdiffeq's, not needed."""
        self.time = t.detach()
        return self.velocity(t, p)

    def velocity(self, t: Tensor, p: Tensor) -> Tensor:
        """The velocity (rows, dim) in the dtype of the state p."""
        arguments = (t.to(self.dtype), p.to(self.dtype))
        with full_precision(p.device):
            h = (
                functional_call(self.field, self.tensors, arguments)
                if self._converted
                else self.field(*arguments)
            )
        velocity: Tensor = h.to(p.dtype)
        return velocity

    def callback_step(self, *_: object) -> None:
        """Called by torchdiffeq before each step; nothing to do."""

    callback_accept_step = callback_reject_step = callback_step

    def diverged(self, error: AssertionError) -> FlowDiverged:
        """torchdiffeq's assertion, which may print a whole state, as a typed error of one line."""
        return FlowDiverged(float(self.time), str(error).split("`")[0].strip(" :"))


def discrete_solve(
    dynamics: Dynamics, state: Tensor, times: Tensor, method: str, rtol: float, atol: float, step: float
) -> Tensor:
    """p at the times (length, rows, dim), the first being the state's; autograd follows the steps."""
    options = _options(method, times, step)
    solver = SOLVERS[method](func=dynamics, y0=state, rtol=rtol, atol=atol, norm=_worst_row, **options)
    steps = _adaptive_steps if method in ADAPTIVE_METHODS else _fixed_steps
    return torch.cat([state.unsqueeze(0).to(dynamics.out_dtype), *steps(solver, times)])


def adjoint_solve(
    dynamics: Dynamics, state: Tensor, times: Tensor, method: str, rtol: float, atol: float, step: float
) -> Tensor:
    """The same with the gradient of the continuous adjoint (FLOATER, equations 16 and 17)."""
    options = _options(method, times, step)
    if method in ADAPTIVE_METHODS:
        options["max_num_steps"] = MAX_STEPS
    backward_options = dict(options)
    handle_adjoint_norm_(backward_options, None, _worst_row)
    parameters = [tensor for tensor in dynamics.tensors.values() if tensor.requires_grad]

    def field(t: Tensor, p: Tensor) -> Tensor:
        # The adjoint differentiates in p, which a field need not depend on.
        return dynamics(t, p) + 0.0 * p

    try:
        solution: Tensor = _Adjoint.apply(
            *(None, field, state, times, rtol, atol, method, options | {"norm": _worst_row}, None),
            *(rtol, atol, method, backward_options, times.requires_grad, *parameters),
        )
    except AssertionError as error:
        raise dynamics.diverged(error) from error
    return solution.to(dynamics.out_dtype)


class _Adjoint(OdeintAdjointMethod):  # type: ignore[misc]
    """torchdiffeq's adjoint, with a typed error when the solve backwards in time fails."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        try:
            return OdeintAdjointMethod.backward(ctx, *gradients)
        except AssertionError as error:
            raise FlowDiverged(float(ctx.saved_tensors[0][-1]), f"in the adjoint: {error}") from error


def _worst_row(error: Tensor) -> Tensor:
    """Root mean square over dim, largest over rows."""
    return error.square().mean(dim=-1).amax().sqrt()


def _options(method: str, times: Tensor, step: float) -> dict[str, Any]:
    """Options for torchdiffeq that make outputs as accurate as the steps are."""
    if method in FIXED_STEP_METHODS:
        # Between grid points torchdiffeq interpolates linearly.
        return {"grid_constructor": lambda _func, _state, t: subdivide(t, step)}
    # Within a step it interpolates by a quartic, which is not enough for an eighth-order method.
    return {"step_t": times.detach()} if SOLVERS[method].order > 5 else {}


def subdivide(times: Tensor, step: float) -> Tensor:
    """The times, and between each two of them equal steps no longer than `step`.

    Raises:
        FlowDiverged: if there are more steps than a solve may take.

    Example:
        >>> subdivide(torch.tensor([0.0, 0.5, 2.0]), 1.0)
        tensor([0.0000, 0.5000, 1.2500, 2.0000])
    """
    gap = times.diff()
    # The tolerance keeps 0.1 / 0.02 at five steps when the quotient rounds up.
    counts = (gap.detach().abs() / step - 1e-6).ceil().clamp(min=1)
    if float(counts.sum()) > MAX_STEPS:
        late = int((counts.cumsum(0) <= MAX_STEPS).sum())
        raise FlowDiverged(float(times[late]), f"{MAX_STEPS} steps were not enough")
    counts = counts.long()
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    part = torch.arange(len(first), device=times.device) - first
    left, gap, counts = (x.repeat_interleave(counts) for x in (times[:-1], gap, counts))
    return torch.cat((left + gap * (part / counts), times[-1:]))


def _adaptive_steps(solver: Any, times: Tensor) -> Iterator[Tensor]:
    """Advance an adaptive solver; yield p at the wanted times that each step passes over.

    torchdiffeq writes outputs into one tensor, one at a time, which makes the backward pass
    quadratic in the number of times. Here each accepted step gives all its outputs by one product
    of the interpolant's weights with the step's stages.
    """
    solver._interp_fit = lambda y0, _y1, k, _dt: (y0, k)
    solver._before_integrate(times.detach())
    # The first step size comes from norms, which have no gradient at zero; it needs none.
    solver.rk_state = solver.rk_state._replace(dt=solver.rk_state.dt.detach())
    weights = _interpolant(solver)
    wanted, done = times.tolist(), 1
    for _ in range(MAX_STEPS):
        reached = float(solver.rk_state.t1)
        # Left alone, this index stays behind for good when a step ends exactly at its time.
        solver.next_step_index = done
        try:
            solver.rk_state = solver._adaptive_step(solver.rk_state)
        except AssertionError as error:
            solver.func.time = reached
            raise solver.func.diverged(error) from error
        t0, t1 = float(solver.rk_state.t0), float(solver.rk_state.t1)
        passed = next((i for i in range(done, len(wanted)) if wanted[i] > t1), len(wanted))
        if passed > done:
            y0, k = solver.rk_state.interp_coeff
            x = (times[done:passed] - t0) / (t1 - t0)
            powers = torch.stack((x, x**2, x**3, x**4), dim=1) * (t1 - t0)
            yield (y0 + torch.einsum("ns,rds->nrd", powers @ weights, k)).to(solver.func.out_dtype)
            done = passed
        if done == len(wanted):
            return
    raise FlowDiverged(float(solver.rk_state.t1), f"{MAX_STEPS} steps were not enough")


def _interpolant(solver: Any) -> Tensor:
    """Weights (4, stages) of the quartic through a step, in powers 1 to 4 of its elapsed part.

    The quartic takes the values and slopes at both ends and the value in the middle. With weights
    on the stages rather than on the values it only adds small numbers to the state.
    """
    end, middle = solver.tableau.c_sol, solver.mid
    slope0, slope1 = torch.zeros_like(end), torch.zeros_like(end)
    slope0[0] = slope1[-1] = 1.0
    return torch.stack(
        (
            slope0,
            slope1 - 4 * slope0 - 5 * end + 16 * middle,
            5 * slope0 - 3 * slope1 + 14 * end - 32 * middle,
            2 * (slope1 - slope0) - 8 * end + 16 * middle,
        )
    )


def _fixed_steps(solver: Any, times: Tensor) -> Iterator[Tensor]:
    """Advance a fixed-step solver over its grid; yield p at the wanted times."""
    grid = solver.grid_constructor(solver.func, solver.y0, times)
    wanted = set(torch.searchsorted(grid.detach(), times.detach()).tolist())
    p = solver.y0
    for index, (t0, t1) in enumerate(pairwise(grid), start=1):
        change, _ = solver._step_func(solver.func, t0, t1 - t0, t1, p)
        p = p + change
        if index in wanted:
            yield p.unsqueeze(0).to(solver.func.out_dtype)
