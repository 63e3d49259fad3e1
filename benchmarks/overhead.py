"""Cost of FLOATER in a Transformer, in paired steps against the same model with sinusoids.

FLOATER is at all blocks with injection "qkv". Training steps are forward, backward and Adam on random
pairs of texts; inference is a forward pass with baked vectors. `--times` compares FLOATER at random times
with FLOATER at the positions, `--clock` an encoding that has a clock for each head with the plain one,
`--driven` `floater_cde` with `rotary`, and `--relative` the solves of `floater_relative`, forward and
backward, with a whole step. Both sides take every step in alternating order, and the ratio of their times is
printed with a 95 % interval (of the geometric mean of the paired ratios, by Student's t; whole refresh cycles
count as one pair). `--csv docs/performance` stores the rows, and `--csv docs/clock` those of `--clock` and
`--driven`.

    python benchmarks/overhead.py                            # tiny
    python benchmarks/overhead.py --refresh-every 10
    python benchmarks/overhead.py --preset transformer-base --vocabulary 37000 --steps 30
    python benchmarks/overhead.py --inference
    python benchmarks/overhead.py --times stretch
    python benchmarks/overhead.py --relative --preset transformer-base --vocabulary 37000 --steps 10
    python benchmarks/overhead.py --clock rotary --preset transformer-base --cpu-time
    python benchmarks/overhead.py --driven --preset transformer-base --cpu-time
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
from stored import add_csv, show

Step = Callable[[], float]
SENTENCES = 32


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


def columns(base: str, other: str, label: str = "step") -> list[str]:
    """Return the columns of the rows of `ratio`."""
    return [label, f"{base}, median ms", f"{other}, median ms", "pairs", "ratio", "95 % interval"]


def ratio(label: str, base: list[float], other: list[float]) -> list[str]:
    """Return the medians and the ratio other / base with its interval, as cells."""
    logs = [math.log(b / a) for a, b in zip(base, other, strict=True)]
    middle = statistics.fmean(logs)
    half = float(student.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, mean, high = (f"{math.exp(x):.3f}" for x in (middle - half, middle, middle + half))
    medians = [1e3 * statistics.median(seconds) for seconds in (base, other)]
    ms = [f"{median:,.{0 if median >= 200 else 1}f}" for median in medians]
    return [label, *ms, str(len(logs)), mean, f"{low} to {high}"]


def texts(arguments: argparse.Namespace) -> Tensor:
    """Return the token ids of pairs of random texts, (2, sentences, length)."""
    shape = (2, arguments.sentences, arguments.length)
    return torch.randint(3, arguments.vocabulary, shape, generator=torch.Generator().manual_seed(0))


def training(arguments: argparse.Namespace) -> list[str]:
    every, batch = arguments.refresh_every, texts(arguments)
    plain = Case("sinusoidal", arguments)
    floater = Case("floater", arguments, position_options={"refresh_every": every})
    steps = math.ceil(arguments.steps / every) * every
    times = paired(lambda: plain.step(*batch), lambda: floater.step(*batch), steps, every)
    solves = "a fresh solve every step" if every == 1 else f"`refresh_every={every}`, whole cycles"
    return ratio(f"training, {arguments.preset}, {solves}", *times)


def random_times(arguments: argparse.Namespace) -> list[str]:
    batch = texts(arguments)
    plain = Case("floater", arguments)
    drawn = Case("floater", arguments, times={"mode": arguments.times})
    times = paired(lambda: plain.step(*batch), lambda: drawn.step(*batch), arguments.steps)
    return ratio(f"training, {arguments.preset}, FLOATER, `--times {arguments.times}`", *times)


def clock(arguments: argparse.Namespace) -> list[str]:
    batch, name = texts(arguments), arguments.clock
    plain = Case(name, arguments)
    driven = Case(name, arguments, position_options={"clock": {"std": 0.02}})
    times = paired(lambda: plain.step(*batch), lambda: driven.step(*batch), arguments.steps)
    return ratio(f"`{name}`", *times)


def driven(arguments: argparse.Namespace) -> list[str]:
    batch = texts(arguments)
    plain = Case("rotary", arguments)
    flow = Case("floater_cde", arguments, position_options={"std": 0.02})
    times = paired(lambda: plain.step(*batch), lambda: flow.step(*batch), arguments.steps)
    return ratio("`rotary`, then `floater_cde`", *times)


def relative(arguments: argparse.Namespace) -> list[str]:
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
    return ratio(f"a step and the solves of `floater_relative`, {arguments.preset}", *times)


def inference(arguments: argparse.Namespace) -> list[str]:
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
    pairs = "" if arguments.sentences == SENTENCES else f", {arguments.sentences} pairs of texts"
    return ratio(f"inference, {arguments.preset}, baked{pairs}", *times)


def monitoring(arguments: argparse.Namespace) -> list[str]:
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
    return ratio(f"the flow alone, {arguments.preset}, its mesh checked", *seconds)


TABLES = {
    training: ("steps", "sinusoidal", "FLOATER"),
    inference: ("steps", "sinusoidal", "FLOATER"),
    clock: ("cost", "plain", "driven", "encoding"),
    driven: ("cost", "plain", "driven", "encoding"),
}
"""Name of the table of a measurement, and names of its sides and of their label."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="tiny", choices=PRESETS)
    parser.add_argument("--length", type=int, default=128, help="tokens on each side")
    parser.add_argument("--sentences", type=int, default=SENTENCES)
    parser.add_argument("--vocabulary", type=int, default=6000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--refresh-every", type=int, default=1)
    kind = parser.add_mutually_exclusive_group()
    for run in (inference, monitoring, relative, driven):
        kind.add_argument(f"--{run.__name__}", dest="run", action="store_const", const=run, default=training)
    kind.add_argument("--times", choices=("stretch", "shift", "float", "subset"))
    kind.add_argument("--clock", help="an encoding that a clock can drive")
    parser.add_argument("--cpu-time", action="store_true", help="of training: for a machine that is shared")
    add_csv(parser)
    arguments = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}\n")
    run = random_times if arguments.times else clock if arguments.clock else arguments.run
    name, *sides = TABLES.get(run, ("variants", "base", "other"))
    show(columns(*sides), (each(arguments) for each in [run]), arguments.csv, name)


if __name__ == "__main__":
    main()
