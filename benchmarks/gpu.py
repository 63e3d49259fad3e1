"""Measure the flow and all encodings on a GPU: the tables of docs/gpu.md.

Solves of the flow, against the paper's setting and torchdiffeq's dopri5; training steps with FLOATER against
the same models with sinusoids or learned positions; every encoding against none; and FlexAttention. Both
sides of a ratio alternate in one process, and every time includes waiting for the GPU to finish.

    python benchmarks/gpu.py --csv docs/gpu    # all, on the first GPU
    python benchmarks/gpu.py --minutes 6       # what fits; the rows that do not are named
    python benchmarks/gpu.py --toy             # toy sizes in seconds, also on a CPU
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import train
from floater import catalogue
from floater.encodings import PositionError
from floater.flow import SolverState, solve
from floater.transformer import FloaterConfig, FloaterForConditionalGeneration, FloaterForMaskedLM
from flow import paper, problem, run, shipped_dopri5
from stored import add_csv, show

FLEXIBLE = "alibi", "disan", "fire", "floater_relative", "kerple", "sandwich", "t5", "window"
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
BERT = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
TOY = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 1, "num_hidden_layers": 1}
Rows = Iterator[tuple[str, Callable[[], list[str]]]]


def waited(device: str, call: Callable[[], Any]) -> float:
    """Return the seconds of a call, including its work on the device."""

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    wait()
    began = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - began


def turns(sides: dict[str, Callable[[], Any]], device: str, count: int) -> dict[str, list[float]]:
    """Return the seconds of alternating calls, after two turns of warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-2, count):
        for name in (list(sides), list(sides)[::-1])[turn % 2]:
            spent = waited(device, sides[name])
            if turn >= 0:
                seconds[name].append(spent)
    return seconds


def solves(dims: Sequence[int], lengths: Sequence[int], limit: int, device: str, count: int) -> Rows:
    """Yield measurements of a solve, forward and backward; its rivals up to `limit` positions."""

    def measured(dim: int, length: int) -> list[str]:
        field, start, times = problem(dim, length, "default")
        field, start = field.to(device), start.detach().to(device).requires_grad_()
        kept, collocate = SolverState(), partial(solve, method="collocation")
        sides: dict[str, Callable[[], Any]] = {
            "kept mesh": partial(run, partial(collocate, state=kept), field, start, times),
            "fresh": lambda: run(partial(collocate, state=SolverState()), field, start, times),
        }
        rivals = {"paper": paper, "dopri5": shipped_dopri5} if length <= limit else {}
        # after what is quick: the paper's setting takes seconds
        seconds = turns(sides, device, count)
        seconds |= turns(
            {name: partial(run, rival, field, start, times) for name, rival in rivals.items()}, device, 1
        )
        median = {name: statistics.median(each) for name, each in seconds.items()}
        cells = [f"{dim:,}", f"{length:,}", *(f"{1e3 * median[name]:,.1f}" for name in sides)]
        for name in ("paper", "dopri5"):
            cells.append(
                f"{1e3 * median[name]:,.0f}, {median[name] / median['fresh']:,.1f} x"
                if name in median
                else ""
            )
        return cells

    for dim, length in product(dims, lengths):
        yield f"{length:,} positions of width {dim:,}", partial(measured, dim, length)


def training(model: str, position: str, toy: bool, device: str) -> Callable[[torch.dtype | None, bool], Any]:
    """Return a function that takes a training step of transformer-base or BERT-base, in a precision, compiled
    or not."""
    batch, length, vocabulary = (2, 16, 50) if toy else (32, 128, 32768)
    sizes = TOY | {"decoder_layers": 1} if toy else BERT if model == "BERT-base" else {}
    more = {"vocab_size": vocabulary, "training_length": length, "position": position}

    def make(dtype: torch.dtype | None, compiled: bool) -> Callable[[], None]:
        torch.manual_seed(0)
        config = FloaterConfig.preset("transformer-base", **(sizes | more))
        kind = FloaterForMaskedLM if model == "BERT-base" else FloaterForConditionalGeneration
        module: nn.Module = kind(config).to(device).train()
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-4)
        if compiled:
            module.compile(backend="eager" if toy else "inductor")
        tokens = torch.randint(5, vocabulary, (batch, length), device=device)
        decoder_inputs = {} if model == "BERT-base" else {"decoder_input_ids": tokens, "use_cache": False}

        def step() -> None:
            with torch.autocast(device.split(":")[0], dtype=dtype, enabled=dtype is not None):
                logits: Tensor = module(input_ids=tokens, **decoder_inputs).logits
            F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make


def overheads(toy: bool, uncompiled: bool, device: str, count: int) -> Rows:
    """Yield the measurements of training steps with FLOATER against the model's own positions."""

    def measured(model: str, base: str, precision: str, compiled: bool) -> list[str]:
        sides = {
            name: training(model, name, toy, device)(PRECISIONS[precision], compiled)
            for name in (base, "floater")
        }
        seconds = turns(sides, device, count)
        ratio = statistics.median(b / a for a, b in zip(seconds[base], seconds["floater"], strict=True))
        ms = [f"{1e3 * statistics.median(seconds[name]):,.1f}" for name in (base, "floater")]
        torch.compiler.reset()
        return [model, base, precision, "yes" if compiled else "no", *ms, f"{ratio:.2f}"]

    models = (("transformer-base", "sinusoidal"), ("BERT-base", "learned"))
    for compiled, (model, base), precision in product((False, True)[: 2 - uncompiled], models, PRECISIONS):
        if not (toy and compiled and precision == "bfloat16"):
            said = f"{model} in {precision}{', compiled' * compiled}"
            yield said, partial(measured, model, base, precision, compiled)


def encodings(
    names: Sequence[str], lengths: Sequence[int], attention: str, arguments: argparse.Namespace
) -> Rows:
    """Yield the measurements of encodings against none, as in `train.py`, in bfloat16."""

    def measured(name: str, length: int) -> list[str]:
        arguments.attention = attention
        with torch.autocast(arguments.device.split(":")[0], dtype=torch.bfloat16):
            try:
                row = train.measured(name, length, arguments)
            except (PositionError, torch.OutOfMemoryError) as error:
                row = {"skipped": str(error).splitlines()[0][:60]}
        if "skipped" in row:
            return [name, f"{length:,}", row["skipped"], ""]
        return [name, f"{length:,}", f"{row['ratio']:.2f}", f"{row['memory']:.2f}"]

    for length, name in product(lengths, names):
        yield f"`{name}` at {length:,}", partial(measured, name, length)


def until(rows: Rows, end: float) -> Iterator[list[str]]:
    """Yield the cells of the rows that begin before a time, and print the names of the others."""
    for said, measure in rows:
        if time.monotonic() > end:
            print(f"not measured: {said}", file=sys.stderr, flush=True)
        else:
            yield measure()
            gc.collect()


def main(argv: Sequence[str] | None = None) -> None:
    """Take the requested measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--toy", action="store_true", help="toy sizes, to check that it runs")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no row begins after that")
    parser.add_argument("--uncompiled", action="store_true", help="no compiled steps: it takes minutes")
    parser.add_argument("--device", default="cuda:0", help="ignored with --toy where there is none")
    parser.add_argument("--encodings", help="names, as in rotary,t5 (default: all)")
    add_csv(parser)
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        if not arguments.toy:
            parser.error("there is no GPU; --toy runs toy sizes on the CPU")
        arguments.device = "cpu"
    if arguments.toy and arguments.csv:
        parser.error("toy sizes are no results to store")
    toy, device, count = arguments.toy, arguments.device, 1 if arguments.toy else 5
    names = arguments.encodings.split(",") if arguments.encodings else [n for n in catalogue() if n != "none"]
    sized = argparse.Namespace(
        device=device,
        clock="wall",
        peers=False,
        most_parameters=400_000_000,
        turns=count,
        **({"tokens": 32, "width": 64, "layers": 1} if toy else {"tokens": 32768, "width": 512, "layers": 6}),
    )
    solved, encoded = ((8, 16), (8, 16)) if toy else ((128, 512, 2048, 16384), (512,))
    flexible = [name for name in FLEXIBLE if name in names]
    columns = "encoding", "positions", "speed", "memory"
    parts = (
        (
            "solve_times",
            ("dim", "positions", "kept mesh, ms", "fresh, ms", "paper's setting, ms", "dopri5, ms"),
            solves((8,) if toy else (512,), solved, 8 if toy else 512, device, count),
            0.14,
        ),
        (
            "step_times",
            ("model", "without FLOATER", "precision", "compiled", "ms", "with FLOATER, ms", "ratio"),
            overheads(toy, arguments.uncompiled, device, count),
            0.25,
        ),
        ("speeds", columns, encodings(names, encoded, "sdpa", sized), 0.7),
        ("flex_speeds", columns, encodings(flexible, encoded, "flex_attention", sized), 1.0),
    )
    began = time.monotonic()
    card = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
    print(f"{card}, torch {torch.__version__}")
    for name, head, rows, share in parts:
        print(f"\n{name}\n")
        keys = 4 if name == "step_times" else 2
        show(head, until(rows, began + 60 * arguments.minutes * share), arguments.csv, name, keys)


if __name__ == "__main__":
    main()
