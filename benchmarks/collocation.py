"""Count the work of a collocation solve: the numbers of docs/design/collocation.md.

512 positions, spacing 0.1, `ROWS` starting vectors, rtol 1e-6, the weights of `benchmarks/flow.py`:
intervals, dependent evaluations by pipeline depth, the contraction of an iteration, the cost of a new mesh in
solves on a kept one, and the change of the weights after which a mesh remains valid.

    python benchmarks/collocation.py
    python benchmarks/collocation.py --counts --csv docs/design/collocation    # no times
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor, nn

from floater.flow import SolverState, solve
from floater.flow.collocation.error_control import CHANGE
from floater.flow.collocation.fixed_point import solve_states
from floater.flow.collocation.formulation import formulate
from floater.flow.collocation.mesh import Mesh
from flow import WEIGHTS, problem
from stored import add_csv, show

LENGTH, TOLERANCE = 512, {"rtol": 1e-6, "atol": 1e-6}
DEPTHS, DRIFTS = (1, 4, 8), (0.05, 0.1, 0.2, 0.4, 0.8)


def solver(state: SolverState) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """Return a solver whose mesh is that of the state."""
    return lambda field, start, times: solve(
        field, start, times, method="collocation", state=state, **TOLERANCE
    )


def count(dim: int, weights: str) -> list[str]:
    """Return intervals, evaluations by depth and contraction for one problem, as cells."""
    field, start, times = problem(dim, LENGTH, weights)
    state = SolverState()
    solver(state)(field, start, times)
    assert state.plan is not None
    form = formulate(field, start.detach(), 0.0, TOLERANCE["rtol"])
    change = CHANGE * state.plan.safety_factor
    cells = []
    for depth in DEPTHS:
        mesh = Mesh(state.plan.edges, depth, form.dtype, start.device)
        with torch.no_grad():
            _, counts = solve_states(form, mesh, change * TOLERANCE["rtol"], change * TOLERANCE["atol"])
        cells.append(f"{sum(counts)}")
    return [str(len(mesh)), *cells, f"{contraction(field, start, state.plan.edges):.2f}"]


def contraction(field: nn.Module, start: Tensor, edges: list[float]) -> float:
    """Return the median over the intervals of the mean ratio of successive changes."""
    ratios = list[float]()
    wide = formulate(field, start.detach(), 0.0, 0.0)
    mesh = Mesh(edges, 1, torch.float64, start.device)
    with torch.no_grad():
        states, _ = solve_states(wide, mesh, 1e-13, 1e-13)
        for w, exact in enumerate(states):
            f = wide.state_term(mesh.times[w], exact).flatten(1)
            base = exact.flatten(1) - mesh.coupling[w] @ f
            guess, changes = exact[:1].expand_as(exact), []
            for _ in range(5):
                new = base + mesh.coupling[w] @ wide.state_term(mesh.times[w], guess).flatten(1)
                changes.append(float((new - guess.flatten(1)).norm()))
                guess = new.view_as(exact)
            ratios.append((changes[4] / changes[1]) ** (1 / 3))
    return statistics.median(ratios)


def first(dim: int, weights: str, backward: bool, turns: int = 9) -> str:
    """Return the time of a solve with a new mesh over that of one on a kept mesh: median and quartiles.

    Both are solved in turn, in this process, and each ratio is that of one turn.
    """
    field, start, times = problem(dim, LENGTH, weights)
    kept, ratios = SolverState(), list[float]()

    def seconds(state: SolverState) -> float:
        began = time.process_time()
        with torch.set_grad_enabled(backward):
            p = solver(state)(field, start, times)
        if backward:
            torch.autograd.grad(p, [start, *field.parameters()], torch.ones_like(p))
        return time.process_time() - began

    for turn in range(turns + 2):
        new, old = seconds(SolverState()), seconds(kept)
        if turn > 1:  # the kept plan counts its iterations
            ratios.append(new / old)
    low, median, high = statistics.quantiles(ratios, n=4)
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def survived(dim: int, drift: float, seeds: int = 5) -> int:
    """Return the number of seeds with which a relative random change of all weights keeps the mesh."""
    reused = 0
    for seed in range(seeds):
        field, start, times = problem(dim, LENGTH, "default")
        state = SolverState()
        solver(state)(field, start, times)
        plan = state.plan
        noise = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in field.parameters():
                parameter.mul_(1 + drift * torch.randn(parameter.shape, generator=noise))
        solver(state)(field, start, times)
        reused += state.plan is plan
    return reused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", action="store_true", help="count only, without times")
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 512])
    add_csv(parser)
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s)\n")
    problems = list(product(arguments.dims, WEIGHTS))
    keys, depths = ["d", "initial weights"], [f"evaluations, D = {depth}" for depth in DEPTHS]
    rows = ([str(dim), WEIGHTS[each], *count(dim, each)] for dim, each in problems)
    show([*keys, "intervals", *depths, "contraction"], rows, arguments.csv, "evaluations", keys=2)
    print("\ndim 128: meshes kept after a change of all weights, of five\n")
    drifts = ([f"{100 * drift:.0f} %", str(survived(128, drift))] for drift in DRIFTS)
    show(["change of the weights", "meshes kept"], drifts, arguments.csv, "drift")
    if not arguments.counts:
        print("\nthe time of a first solve over that of one on a kept mesh: median (quartiles)\n")
        rows = (
            [str(dim), WEIGHTS[each], *(first(dim, each, backward) for backward in (False, True))]
            for dim, each in problems
        )
        show([*keys, "forward", "forward and backward"], rows, arguments.csv, "first", keys=2)


if __name__ == "__main__":
    main()
