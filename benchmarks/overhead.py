"""Cost of FLOATER in a Transformer, in paired steps against the same model with sinusoids.

FLOATER is at all blocks with injection "qkv". Training steps are forward, backward and Adam on random
pairs of texts; inference is a forward pass with baked vectors. `--times` compares FLOATER at random times
with FLOATER at the positions, `--clock` an encoding that has a clock for each head with the plain one,
`--relative` the solves of `floater_relative`, forward and backward, with a whole step. Both sides take every
step in alternating order, and the ratio of their times is printed with a 95 % interval (of the geometric mean
of the paired ratios, by Student's t; whole refresh cycles count as one pair).

    python benchmarks/overhead.py                            # tiny
    python benchmarks/overhead.py --refresh-every 10
    python benchmarks/overhead.py --preset transformer-base --vocabulary 37000 --steps 30
    python benchmarks/overhead.py --inference
    python benchmarks/overhead.py --times stretch
    python benchmarks/overhead.py --relative --preset transformer-base --vocabulary 37000 --steps 10
    python benchmarks/overhead.py --clock rotary --preset transformer-base --cpu-time
    python benchmarks/overhead.py --monitoring               # the flow alone: meshes checked and trusted
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from scipy.stats import t as student
from torch import Tensor
from torch.nn import functional as F

from floater import Positions
from floater.encodings.relative.floater_relative import FloaterRelative
from floater.flow import FlowEncoder
from floater.flow.collocation import solver
from floater.transformer import PRESETS, FloaterConfig, FloaterForConditionalGeneration

Step = Callable[[], float]


class Case:
    """One model and its optimizer; `step` takes a training step and returns its seconds."""

    def __init__(
        self, position: str, arguments: argparse.Namespace, lr: float = 1e-4, **changes: Any
    ) -> None:
        torch.manual_seed(0)
        config = FloaterConfig.preset(
            arguments.preset,
            vocab_size=arguments.vocabulary,
            position=position,
            training_length=arguments.length,
            **changes,
        )
        self.model = FloaterForConditionalGeneration(config).train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr, fused=True)
        self.now = time.process_time if arguments.cpu_time else time.perf_counter

    def step(self, source: torch.Tensor, target: torch.Tensor) -> float:
        began = self.now()
        logits = self.model(input_ids=source, decoder_input_ids=target, use_cache=False).logits
        F.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.now() - began


def paired(first: Step, second: Step, steps: int, cycle: int = 1) -> tuple[list[float], list[float]]:
    """Return the seconds of both, summed over cycles; steps before the first whole cycle warm up."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for step in range(-cycle - 2, steps):
        for which in (0, 1) if step % 2 else (1, 0):
            spent = (first, second)[which]()
            if step >= 0:
                seconds[which].append(spent)
    a, b = ([sum(x[i : i + cycle]) for i in range(0, steps, cycle)] for x in seconds)
    return a, b


def report(label: str, base: list[float], other: list[float]) -> None:
    """Print the ratio other / base with its interval."""
    logs = [math.log(b / a) for a, b in zip(base, other, strict=True)]
    middle = statistics.fmean(logs)
    half = float(student.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, ratio, high = (math.exp(x) for x in (middle - half, middle, middle + half))
    print(
        f"| {label} | {1e3 * statistics.median(base):.1f} | {1e3 * statistics.median(other):.1f} "
        f"| {len(logs)} | {ratio:.4f} | {low:.4f} to {high:.4f} |"
    )


def texts(arguments: argparse.Namespace) -> Tensor:
    """Return the token ids of pairs of random texts, (2, sentences, length)."""
    shape = (2, arguments.sentences, arguments.length)
    return torch.randint(3, arguments.vocabulary, shape, generator=torch.Generator().manual_seed(0))


def training(arguments: argparse.Namespace) -> None:
    every, batch = arguments.refresh_every, texts(arguments)
    plain = Case("sinusoidal", arguments)
    floater = Case("floater", arguments, position_options={"refresh_every": every})
    steps = math.ceil(arguments.steps / every) * every
    times = paired(lambda: plain.step(*batch), lambda: floater.step(*batch), steps, every)
    report(f"training, {arguments.preset}, refresh_every={every}", *times)


def random_times(arguments: argparse.Namespace) -> None:
    batch = texts(arguments)
    plain = Case("floater", arguments)
    drawn = Case("floater", arguments, times={"mode": arguments.times})
    times = paired(lambda: plain.step(*batch), lambda: drawn.step(*batch), arguments.steps)
    report(f"training, {arguments.preset}, floater, times {arguments.times}", *times)


def clock(arguments: argparse.Namespace) -> None:
    batch, name = texts(arguments), arguments.clock
    plain = Case(name, arguments)
    driven = Case(name, arguments, position_options={"clock": {"std": 0.02}})
    times = paired(lambda: plain.step(*batch), lambda: driven.step(*batch), arguments.steps)
    report(f"training, {arguments.preset}, {name} with a clock a head", *times)


def relative(arguments: argparse.Namespace) -> None:
    batch, case = texts(arguments), Case("floater_relative", arguments)
    flows = [module for module in case.model.modules() if isinstance(module, FloaterRelative)]
    positions = Positions.arange(arguments.length)

    def solved() -> float:
        began = time.perf_counter()
        for flow in flows:
            flow.prepare(positions).biases.square().mean().backward()
        spent = time.perf_counter() - began
        case.optimizer.zero_grad()
        return spent

    times = paired(lambda: case.step(*batch), solved, arguments.steps)
    report(f"a step and {len(flows)} solves, {arguments.preset}, floater_relative", *times)


def inference(arguments: argparse.Namespace) -> None:
    plain, floater = (Case(name, arguments).model.eval() for name in ("sinusoidal", "floater"))
    for module in floater.modules():
        if isinstance(module, FlowEncoder):
            module.bake(arguments.length)
    source, target = texts(arguments)

    def step(model: torch.nn.Module) -> float:
        began = time.perf_counter()
        with torch.no_grad():
            model(input_ids=source, decoder_input_ids=target, use_cache=False)
        return time.perf_counter() - began

    times = paired(lambda: step(plain), lambda: step(floater), arguments.steps)
    report(f"inference, {arguments.preset}, baked", *times)


def monitoring(arguments: argparse.Namespace) -> None:
    """Measure solves with and without checks of the flow of a Transformer that learns to reverse random
    texts.

    Both solve forward and backward with the weights of the same step, in changing order. One checks its plan
    and replaces it when it fails. The other uses, without checks, the final plan of a third solve, which also
    warms the caches.
    """
    case = Case("floater", arguments, lr=1e-3)
    encoder = next(module for module in case.model.modules() if isinstance(module, FlowEncoder))
    leading, checked, trusting = (copy.deepcopy(encoder) for _ in range(3))
    positions = torch.arange(arguments.length).unsqueeze(0)
    estimate, seconds = solver.interval_errors, ([], [])

    def unseen(*_: object) -> torch.Tensor:
        return torch.zeros(1, 1)

    def solved(flow: FlowEncoder) -> float:
        flow.load_state_dict(encoder.state_dict())
        began = time.perf_counter()
        vectors = flow(positions)
        torch.stack([vectors.at(*key) for key in flow._keys]).square().mean().backward()
        return time.perf_counter() - began

    for step in range(arguments.steps):
        text = torch.randint(3, arguments.vocabulary, (arguments.sentences, arguments.length))
        case.step(text, text.flip(1))
        solved(leading)
        trusting.solver_state = copy.deepcopy(leading.solver_state)
        for which in (0, 1) if step % 2 else (1, 0):
            solver.interval_errors = estimate if which else unseen
            seconds[which].append(solved(checked if which else trusting))
        solver.interval_errors = estimate
    total = sum(seconds[1]) / sum(seconds[0])
    report(f"the flow alone, {arguments.length} positions, checked, total {total:.3f}", *seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="tiny", choices=PRESETS)
    parser.add_argument("--length", type=int, default=128, help="tokens on each side")
    parser.add_argument("--sentences", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=6000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--refresh-every", type=int, default=1)
    kind = parser.add_mutually_exclusive_group()
    for run in (inference, monitoring, relative):
        kind.add_argument(f"--{run.__name__}", dest="run", action="store_const", const=run, default=training)
    kind.add_argument("--times", choices=("stretch", "shift", "float", "subset"))
    kind.add_argument("--clock", help="an encoding that a clock can drive")
    parser.add_argument("--cpu-time", action="store_true", help="of training: for a machine that is shared")
    arguments = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print("| what | base, median ms | other, median ms | pairs | ratio | 95 % interval |")
    print("|---|---:|---:|---:|---:|---:|")
    (random_times if arguments.times else clock if arguments.clock else arguments.run)(arguments)


if __name__ == "__main__":
    main()
