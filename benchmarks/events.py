"""Cost of irregular times: the shipped events model at as many different real times as a batch has events.

The first table compares forward and backward passes of one model, step by step in turn, on sequences whose
events all have different times and on the same sequences at positions 0, 1, 2, ... over the same span;
the ratio is printed with a 95 % interval. The second shows the flow alone: its solve, and the reading of
vectors, whose time per number should not grow, forward and backward.

    python benchmarks/events.py
    python benchmarks/events.py --sequences 16 --length 128 --steps 10
    python benchmarks/events.py --profile            # where a step at irregular times spends its time
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from floater.flow import FlowEncoder, Solution, solve_dense
from floater.lab.settings import load
from floater.lab.tasks.events import EventsSettings, FloaterForEvents
from overhead import columns, paired, ratio
from stored import add_csv, show

CONFIG = Path(__file__).parents[1] / "configs" / "events" / "so_badges.yaml"
TYPES = 22


class Case:
    """The shipped model with positions of one source, and a batch."""

    def __init__(self, source: str, types: Tensor, times: Tensor) -> None:
        torch.manual_seed(0)
        settings = load(
            EventsSettings, CONFIG, [f"model.position_source={source}", f"model.max_length={types.shape[1]}"]
        )
        names = [str(i) for i in range(TYPES)]
        self.model = FloaterForEvents(settings.model.config(types=names, log_gap=[0.0, 1.0])).train()
        self.batch = types, times

    def step(self) -> float:
        began = time.perf_counter()
        self.model(*self.batch).nll.mean().backward()
        took = time.perf_counter() - began
        self.model.zero_grad()
        return took


def batch(sequences: int, length: int) -> tuple[Tensor, Tensor]:
    """Types, and times that differ in every event of every sequence, from 0 to length - 1."""
    generator = torch.Generator().manual_seed(0)
    types = torch.randint(TYPES, (sequences, length), generator=generator)
    times = torch.rand(sequences, length, generator=generator, dtype=torch.float64).sort(1).values
    times = (times - times[:, :1]) / (times[:, -1:] - times[:, :1]) * (length - 1)
    return types, times


def median_ms(step: Callable[[], object], count: int) -> float:
    seconds = []
    for _ in range(count + 2):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return 1e3 * statistics.median(seconds[2:])


def alone(encoder: FlowEncoder, times: Tensor, steps: int) -> Iterator[list[str]]:
    """Yield the times of the solve and of the evaluation, forward and backward, as cells."""
    field, start = encoder.field, encoder.start.flatten(0, 1)
    end = float(times.max()) * encoder.delta
    rows, dim = start.shape

    def solve() -> None:
        solve_dense(field, start, end)._velocities.square().sum().backward(retain_graph=True)

    yield [f"solve over t = {end:.0f}", "", f"{median_ms(solve, steps):.1f}", ""]
    with torch.no_grad():
        curve = solve_dense(field, start, end)
    curve._velocities.requires_grad_()
    for count in (times.numel() // 4, times.numel() // 2, times.numel()):
        at, ones = times.flatten()[:count] * encoder.delta, torch.ones(count, dim)
        took = median_ms(lambda at=at, ones=ones: read(curve, at, ones), steps)
        per_number = 1e6 * took / (count * rows * dim)
        yield [f"evaluation of {rows} trajectories", f"{count:,}", f"{took:.1f}", f"{per_number:.1f}"]


def read(curve: Solution, at: Tensor, cotangent: Tensor) -> None:
    """Read all trajectories, one after another, as the projections of a Transformer do."""
    for vectors in curve.sample(at):
        vectors.backward(cotangent, retain_graph=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--profile", action="store_true")
    add_csv(parser)
    arguments = parser.parse_args()
    types, times = batch(arguments.sequences, arguments.length)
    whole, irregular = Case("index", types, times), Case("time", types, times)
    print(
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, {arguments.sequences} sequences of "
        f"{arguments.length} events, {len(times[:, 1:].unique()):,} different times\n"
    )
    if arguments.profile:
        irregular.step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            irregular.step()
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=20))
        return
    sides = paired(whole.step, irregular.step, arguments.steps)
    rows = [ratio("forward and backward", *sides)]
    show(columns("integers", "irregular"), rows, arguments.csv, "events")
    (encoder,) = (module for module in irregular.model.modules() if isinstance(module, FlowEncoder))
    print("\nThe flow of the model alone, forward and backward:\n")
    heads = ["flow alone", "times", "median ms", "ns per number"]
    show(heads, alone(encoder, times, arguments.steps), arguments.csv, "events_flow", keys=2)


if __name__ == "__main__":
    main()
