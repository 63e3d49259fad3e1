"""Time `floater.flow.solve`, forward and backward, against torchdiffeq in the paper's setting.

The baseline is torchdiffeq as it ships: `rk4` with step 0.02 (the paper's Delta / 5), gradients by
autograd through the solver. The second rival is its `dopri5` at a tolerance of 1e-6, as shipped.
"gathered" is the same method with its outputs gathered step by step, so that its backward pass is
linear in the length. All solvers alternate in one process, so a ratio compares runs made under the
same load; torchode and diffrax take part if they are installed. The first turn, in which collocation
selects its mesh, is not counted. Errors compare with a float64 solve at a tolerance of 1e-11.

    python benchmarks/flow.py --quick          # small shapes, seconds
    python benchmarks/flow.py                  # dim 128 and 512, lengths 128, 512 and 2048
    python benchmarks/flow.py --weights double --rtol 3e-6  # PyTorch's initialisation, doubled
    python benchmarks/flow.py --memory --lengths 512 2048 8192 65536  # time and peak memory, dim 512
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torchdiffeq import odeint

from floater.flow import MLPField, SolverState, flow_error, gradient_error, init_small_, solve
from rivals import Run, diffrax_dopri5, torchode_dopri5
from stored import add_csv, exponent, show

ROWS, SPACING, STEP = 18, 0.1, 0.02
Solver = Callable[[nn.Module, Tensor, Tensor], Tensor]


def paper(field: nn.Module, start: Tensor, times: Tensor) -> Tensor:
    """The baseline."""
    return odeint(field, start, times, method="rk4", options={"step_size": STEP})


def shipped_dopri5(field: nn.Module, start: Tensor, times: Tensor) -> Tensor:
    """torchdiffeq's adaptive method at the tolerance of our default."""
    return odeint(field, start, times, method="dopri5", rtol=1e-6, atol=1e-6)


class AnyField(nn.Module):
    """A field that is not recognised as an MLP, so that its products cannot be merged."""

    def __init__(self, field: nn.Module) -> None:
        super().__init__()
        self.field = field

    def forward(self, t: Tensor, p: Tensor) -> Tensor:
        velocity: Tensor = self.field(t, p)
        return velocity


OURS = "collocation"
WEIGHTS = {"small": "`init_small_`", "default": "PyTorch's", "double": "PyTorch's, doubled"}


def runs(rtol: float, few: bool) -> dict[str, Run]:
    """Return the solvers that alternate on one problem; other packages if they are installed."""
    ours: dict[str, Any] = {"method": "collocation", "rtol": rtol, "atol": rtol}
    state, other = SolverState(), SolverState()
    solvers: dict[str, Solver] = {
        OURS: lambda h, p, t: solve(h, p, t, state=state, **ours),
        "paper's setting": paper,
        "dopri5 as shipped": shipped_dopri5,
    }
    if not few:
        solvers |= {
            "rk4, 0.1": lambda h, p, t: solve(h, p, t, method="rk4", step=0.1),
            "gathered": lambda h, p, t: solve(h, p, t, method="dopri5"),
            "any field": lambda h, p, t: solve(AnyField(h), p, t, state=other, **ours),
        }
    sides: dict[str, Run] = {name: partial(run, solver) for name, solver in solvers.items()}
    if few:
        return sides
    if find_spec("torchode"):
        sides["torchode"] = partial(run, torchode_dopri5)
    if find_spec("diffrax"):
        sides["diffrax"] = diffrax_dopri5
    return sides


def problem(dim: int, length: int, weights: str) -> tuple[MLPField, Tensor, Tensor]:
    """A field, starting vectors (ROWS, dim) and times (length,) with one seed for all."""
    torch.manual_seed(0)
    field = MLPField(dim)
    if weights == "small":
        init_small_(field, SPACING * length)
    elif weights == "double":
        with torch.no_grad():
            for parameter in field.parameters():
                parameter.mul_(2)
    start = 0.02 * torch.randn(ROWS, dim)
    return field, start.requires_grad_(), SPACING * torch.arange(length, dtype=torch.float64)


def run(solver: Solver, field: nn.Module, start: Tensor, times: Tensor) -> tuple[Tensor, list[Tensor], float]:
    """Vectors, gradients and seconds of one forward and backward pass."""
    cotangent = torch.linspace(0, 1, ROWS * len(times)).view(len(times), ROWS, 1).to(start)
    cotangent = (cotangent / (len(times) * start.numel())).expand(len(times), *start.shape).contiguous()
    began = time.perf_counter()
    p = solver(field, start, times)
    gradients = torch.autograd.grad(p, [start, *field.parameters()], cotangent)
    return p.detach(), list(gradients), time.perf_counter() - began


def exact(field: MLPField, start: Tensor, times: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Vectors and gradients of a float64 solve at 1e-11."""
    copy = MLPField(field.dim).double()
    copy.load_state_dict(field.state_dict())
    wide = start.detach().double().requires_grad_()
    p, gradients, _ = run(
        lambda h, s, t: solve(h, s, t, method="dopri8", rtol=1e-11, atol=1e-11), copy, wide, times
    )
    return p, gradients


def compare(dim: int, length: int, arguments: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the rows of one shape, a solver in each; the solvers alternate."""
    field, start, times = problem(dim, length, arguments.weights)
    sides = runs(arguments.rtol, arguments.few)
    reference, reference_gradients = exact(field, start, times)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    errors: dict[str, tuple[float, float]] = {}
    began = time.perf_counter()
    for turn in range(arguments.repeats + 1):
        for name, side in sides.items():
            p, gradients, elapsed = side(field, start, times)
            if turn > 0:
                seconds[name].append(elapsed)
            errors[name] = flow_error(p, reference), gradient_error(gradients, reference_gradients)
        # Whole turns only, so that every solver has run equally often.
        if turn > 0 and (time.perf_counter() - began) * (turn + 2) / (turn + 1) > arguments.limit:
            break
    medians = {name: statistics.median(elapsed) for name, elapsed in seconds.items()}
    for name, elapsed in seconds.items():
        ratio = medians[name] / medians[OURS]
        times_ours = f"{ratio:.{0 if ratio >= 10 else 1}f}" if name != OURS else ""
        spread = f"{1e3 * min(elapsed):,.0f} to {1e3 * max(elapsed):,.0f}"
        cells = [
            str(dim),
            f"{length:,}",
            exponent(arguments.rtol),
            name,
            f"{1e3 * medians[name]:,.0f}",
            spread,
        ]
        yield [*cells, str(len(elapsed)), times_ours, *map(exponent, errors[name])]


MEASURE = """
import json, resource, sys, time, torch
sys.path.insert(0, {folder!r})
from flow import problem
from floater.flow import SolverState, solve
imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
field, start, times = problem({dim}, {length}, "default")
elapsed, options = [], {options!r}
if options["method"] == "collocation":
    options["state"] = SolverState()
for _ in range({turns}):
    began = time.perf_counter()
    p = solve(field, start, times, **options)
    solved = time.perf_counter() - began
    (p * torch.linspace(0, 1, len(times)).view(-1, 1, 1)).mean().backward()
    elapsed.append((time.perf_counter() - began, solved))
    del p
print(json.dumps([imported, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, *min(elapsed)]))
"""


def memory(dim: int, length: int, **options: str) -> list[str]:
    """Return seconds and peak memory of a process that solves, forward and backward, as cells."""
    turns = 1 if length > 16384 else 3
    code = MEASURE.format(folder=str(sys.path[0]), dim=dim, length=length, options=options, turns=turns)
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB on Linux
    imported, peak, both, forward = json.loads(answer.stdout)
    numbers = forward, both, 1e3 * both / length, peak * unit / 1e9, imported * unit / 1e9
    return [f"{length:,}", options["method"], *(f"{number:.2f}" for number in numbers)]


MEMORY = ["positions", "method", "forward, s", "forward and backward, s"]
MEMORY += ["ms per position", "peak, GB", "imports, GB"]
SOLVERS = ["dim", "length", "rtol", "solver", "median ms", "spread, ms", "turns", "x collocation"]
SOLVERS += ["error p", "error of the gradient"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small shapes only")
    parser.add_argument("--memory", action="store_true", help="measure peak memory instead of time")
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--weights", choices=WEIGHTS, default="default")
    parser.add_argument("--rtol", type=float, default=1e-6, help="that collocation is asked for")
    parser.add_argument(
        "--few", action="store_true", help="the paper's setting, dopri5 and collocation alone"
    )
    parser.add_argument("--repeats", type=int, default=5, help="turns per shape, at most")
    parser.add_argument("--limit", type=float, default=40.0, help="seconds per shape after which turns stop")
    add_csv(parser)
    arguments = parser.parse_args()
    dims, lengths = ([16], [32, 64]) if arguments.quick else (arguments.dims, arguments.lengths)
    if arguments.memory:
        dim = 64 if arguments.quick else 512
        methods = [(n, method) for n in lengths for method in ("dopri5", OURS) if n <= 2048 or method == OURS]
        show(
            MEMORY, (memory(dim, n, method=method) for n, method in methods), arguments.csv, "lengths", keys=2
        )
        return
    print(
        f"{ROWS} rows, spacing {SPACING}, {arguments.weights} weights, collocation with rtol "
        f"{arguments.rtol:g}, {torch.get_num_threads()} threads\n"
    )
    rows = (row for dim in dims for length in lengths for row in compare(dim, length, arguments))
    names = {"default": "solvers" if arguments.few else "rivals", "double": "doubled", "small": "small"}
    show(SOLVERS, rows, arguments.csv, names[arguments.weights], keys=4)


if __name__ == "__main__":
    main()
