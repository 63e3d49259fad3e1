"""Time `floater.flow.solve`, forward and backward, against torchdiffeq in the paper's setting.

The baseline is torchdiffeq as it ships: `rk4` with step 0.02 (the paper's Delta / 5), gradients by
autograd through the solver. All solvers take turns in one process, so a ratio compares runs made
under the same load. Errors compare with a float64 solve at a tolerance of 1e-11.

    python benchmarks/flow.py --quick          # small shapes, seconds
    python benchmarks/flow.py                  # dim 128 and 512, lengths 128, 512 and 2048
    python benchmarks/flow.py --memory         # peak memory of 2,048 positions, dim 512
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torchdiffeq import odeint

from floater.flow import MLPField, flow_error, gradient_error, small_, solve

ROWS, SPACING, STEP = 18, 0.1, 0.02
Solver = Callable[[nn.Module, Tensor, Tensor], Tensor]


def paper(field: nn.Module, start: Tensor, times: Tensor) -> Tensor:
    """The baseline."""
    return odeint(field, start, times, method="rk4", options={"step_size": STEP})


def shipped_dopri5(field: nn.Module, start: Tensor, times: Tensor) -> Tensor:
    """torchdiffeq's adaptive method at the tolerance of our default."""
    return odeint(field, start, times, method="dopri5", rtol=1e-6, atol=1e-6)


SOLVERS: dict[str, Solver] = {
    "torchdiffeq rk4, 0.02 (paper)": paper,
    "torchdiffeq dopri5": shipped_dopri5,
    "floater rk4, 0.02": lambda h, p, t: solve(h, p, t, method="rk4", step=STEP),
    "floater rk4, 0.1": lambda h, p, t: solve(h, p, t, method="rk4", step=0.1),
    "floater auto": solve,
}


def problem(dim: int, length: int, weights: str) -> tuple[MLPField, Tensor, Tensor]:
    """A field, starting vectors (ROWS, dim) and times (length,) with one seed for all."""
    torch.manual_seed(0)
    field = MLPField(dim)
    if weights == "small":
        small_(field, SPACING * length)
    start = 0.02 * torch.randn(ROWS, dim)
    return field, start.requires_grad_(), SPACING * torch.arange(length, dtype=torch.float64)


def run(solver: Solver, field: nn.Module, start: Tensor, times: Tensor) -> tuple[Tensor, list[Tensor], float]:
    """Vectors, gradients and seconds of one forward and backward pass."""
    weight = torch.linspace(0, 1, ROWS * len(times)).view(len(times), ROWS, 1).to(start)
    began = time.perf_counter()
    p = solver(field, start, times)
    gradients = torch.autograd.grad((weight * p).mean(), [start, *field.parameters()])
    return p.detach(), list(gradients), time.perf_counter() - began


def exact(field: MLPField, start: Tensor, times: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Vectors and gradients of a float64 solve at 1e-11."""
    copy = MLPField(field.dim).double()
    copy.load_state_dict(field.state_dict())
    wide = start.detach().double().requires_grad_()
    p, gradients, _ = run(lambda h, s, t: solve(h, s, t, rtol=1e-11, atol=1e-11), copy, wide, times)
    return p, gradients


def compare(dim: int, length: int, weights: str, repeats: int, limit: float) -> None:
    """Print the rows of one shape, the solvers taking turns."""
    field, start, times = problem(dim, length, weights)
    reference, reference_gradients = exact(field, start, times)
    seconds: dict[str, list[float]] = {name: [] for name in SOLVERS}
    errors: dict[str, tuple[float, float]] = {}
    began = time.perf_counter()
    for turn in range(repeats):
        for name, solver in SOLVERS.items():
            p, gradients, taken = run(solver, field, start, times)
            seconds[name].append(taken)
            errors[name] = flow_error(p, reference), gradient_error(gradients, reference_gradients)
        # Whole turns only, so that every solver has run equally often.
        if (time.perf_counter() - began) * (turn + 2) / (turn + 1) > limit:
            break
    baseline = statistics.median(next(iter(seconds.values())))
    for name, taken in seconds.items():
        middle = statistics.median(taken)
        spread = f"{1e3 * min(taken):.0f} to {1e3 * max(taken):.0f}"
        value, gradient = errors[name]
        print(
            f"| {dim} | {length} | {name} | {1e3 * middle:.0f} | {spread} | {len(taken)} "
            f"| {baseline / middle:.1f} | {value:.0e} | {gradient:.0e} |",
            flush=True,
        )


MEASURE = """
import json, resource, sys, time, torch
sys.path.insert(0, {folder!r})
from flow import problem
from floater.flow import solve
imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
field, start, times = problem({dim}, {length}, "default")
began = time.perf_counter()
solve(field, start, times, method="dopri5").sum().backward()
taken = time.perf_counter() - began
print(json.dumps([imported, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, taken]))
"""


def memory(dim: int, length: int) -> None:
    """Print the peak memory of a process that solves once, forward and backward, by dopri5."""
    code = MEASURE.format(folder=str(sys.path[0]), dim=dim, length=length)
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB on Linux
    imported, peak, taken = json.loads(answer.stdout)
    print(
        f"{length} positions, dim {dim}, {ROWS} rows, dopri5, forward and backward: "
        f"peak {peak * unit / 1e9:.2f} GB for the whole process "
        f"({imported * unit / 1e9:.2f} GB after the imports), {taken:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small shapes only")
    parser.add_argument("--memory", action="store_true", help="measure peak memory instead of time")
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--weights", choices=["default", "small"], default="default")
    parser.add_argument("--repeats", type=int, default=5, help="turns per shape, at most")
    parser.add_argument("--limit", type=float, default=40.0, help="seconds per shape after which turns stop")
    arguments = parser.parse_args()
    dims, lengths = ([16], [32, 64]) if arguments.quick else (arguments.dims, arguments.lengths)
    if arguments.memory:
        memory(64 if arguments.quick else 512, 64 if arguments.quick else 2048)
        return
    print(f"{ROWS} rows, spacing {SPACING}, {arguments.weights} weights, {torch.get_num_threads()} threads\n")
    print("| dim | length | solver | median ms | spread ms | n | times faster | error p | error gradient |")
    print("|--:|--:|---|--:|--:|--:|--:|--:|--:|")
    for dim in dims:
        for length in lengths:
            compare(dim, length, arguments.weights, arguments.repeats, arguments.limit)


if __name__ == "__main__":
    main()
