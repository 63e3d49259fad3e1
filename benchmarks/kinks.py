"""Time solvers of a ReLU field, whose kinks lower the order of every step that contains one.

Forward and backward from a given cotangent, 18 starting vectors, 512 positions at a spacing of 0.1. The
solvers alternate in one process, one thread each; seconds are CPU time, the minimum over the turns after a
first one that is not counted. Errors of the vectors compare with rk4 with step 0.002 in float64.

    python benchmarks/kinks.py              # minutes: width 128, both initialisations
    python benchmarks/kinks.py --quick      # seconds: width 16, 32 positions
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from floater.flow import MLPField, SolverState, flow_error, init_small_, solve
from flow import WEIGHTS
from stored import add_csv, exponent, show

ROWS, SPACING = 18, 0.1
SOLVERS: dict[str, dict[str, Any]] = {
    "rk4, step 0.1": {"method": "rk4", "step": 0.1},
    "rk4, step 0.02": {"method": "rk4", "step": 0.02},
    "collocation": {"method": "collocation"},
    "dopri5": {"method": "dopri5"},
}


def main() -> None:
    """Print a table with a row for each width and initialisation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    add_csv(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shapes = [(16, "small")] if arguments.quick else [(128, "small"), (128, "default")]
    length = 32 if arguments.quick else 512
    rows = (compare(dim, weights, length, arguments.turns) for dim, weights in shapes)
    show(["dim", "weights", *SOLVERS], rows, arguments.csv, "kinks", keys=2)


def compare(dim: int, weights: str, length: int, turns: int) -> list[str]:
    """Return seconds and error of each solver for one field, as cells."""
    torch.manual_seed(0)
    field = MLPField(dim, activation="relu")
    if weights == "small":
        init_small_(field, SPACING * length)
    start = (0.02 * torch.randn(ROWS, dim)).requires_grad_()
    times = SPACING * torch.arange(length, dtype=torch.float64)
    cotangent = torch.randn(length, ROWS, dim, generator=torch.Generator().manual_seed(1)) / length
    options = SOLVERS | {"collocation": {"method": "collocation", "state": SolverState()}}
    solvers = {name: partial(solve, **each) for name, each in options.items()}
    seconds = {name: float("inf") for name in solvers}
    errors: dict[str, float] = {}
    reference = exact(field, start, times)
    for turn in range(turns + 1):
        for name, solver in solvers.items():
            began = time.process_time()
            p = solver(field, start, times)
            torch.autograd.grad(p, [start, *field.parameters()], cotangent)
            if turn > 0:  # the first one selects a mesh
                seconds[name] = min(seconds[name], time.process_time() - began)
            errors[name] = flow_error(p.detach(), reference)
    return [str(dim), WEIGHTS[weights], *(f"{seconds[n]:.2g} s, {exponent(errors[n])}" for n in solvers)]


@torch.no_grad()
def exact(field: MLPField, start: Tensor, times: Tensor) -> Tensor:
    """Return the vectors by rk4 with a step of 0.002 in float64."""
    copy = MLPField(field.dim, activation="relu").double()
    copy.load_state_dict(field.state_dict())
    return solve(copy, start.detach().double(), times, method="rk4", step=0.002)


if __name__ == "__main__":
    main()
