"""Measure the flow and all encodings on a GPU, and write docs/gpu.md.

Three tables: solves of the flow against the paper's setting and torchdiffeq's dopri5; a training step with
FLOATER against the same model with sinusoids or learned positions, with and without compilation, in float32
and bfloat16; and every encoding against none, by SDPA and by FlexAttention. Both sides of a ratio alternate
in one process, and every time includes waiting for the GPU to finish.

    python benchmarks/gpu.py                        # all, on the first GPU; writes docs/gpu.md
    python benchmarks/gpu.py --toy --page toy.md    # toy sizes in seconds, also on a CPU
    python benchmarks/gpu.py --unmeasured           # a page without measurements
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
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

PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"
ATTENTIONS = "sdpa", "flex_attention"
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
BERT = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
TOY = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 1, "num_hidden_layers": 1}
UNMEASURED = """# Performance on a GPU

Nothing was measured on CUDA. `python benchmarks/gpu.py` measures on a GPU and replaces this page by its
tables: the solve (paper's setting, dopri5, collocation), the overhead of a training step with and without
compilation in float32 and bfloat16, and the speed and memory of every encoding, with
`attn_implementation="sdpa"` and `"flex_attention"`. The tests run it at toy sizes on a CPU.
"""
Rows = list[list[str]]


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
    """Measure forward and backward passes of a solve; the rivals up to `limit` positions."""
    rows = []
    for dim in dims:
        for length in lengths:
            field, start, times = problem(dim, length, "default")
            field, start = field.to(device), start.detach().to(device).requires_grad_()
            kept = SolverState()
            collocate = partial(solve, method="collocation")
            sides = {
                "kept mesh": partial(run, partial(collocate, state=kept), field, start, times),
                "fresh": lambda problem=(field, start, times), collocate=collocate: run(
                    partial(collocate, state=SolverState()), *problem
                ),
            }
            if length <= limit:
                sides["paper"] = partial(run, paper, field, start, times)
                sides["dopri5"] = partial(run, shipped_dopri5, field, start, times)
            seconds = {name: statistics.median(ts) for name, ts in turns(sides, device, count).items()}
            cells = [f"{dim:,}", f"{length:,}", *(f"{1e3 * seconds[name]:,.1f}" for name in list(sides)[:2])]
            for name in ("paper", "dopri5"):
                cells.append(
                    f"{1e3 * seconds[name]:,.0f}, {seconds[name] / seconds['fresh']:,.1f} x"
                    if name in seconds
                    else ""
                )
            rows.append(cells)
    return rows


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


def overheads(toy: bool, device: str, count: int) -> Rows:
    """Measure training steps with FLOATER against the model's own positions."""
    rows = []
    for model, base in (("transformer-base", "sinusoidal"), ("BERT-base", "learned")):
        for precision, dtype in PRECISIONS.items():
            for compiled in (False,) if toy and dtype is not None else (False, True):
                sides = {
                    name: training(model, name, toy, device)(dtype, compiled) for name in (base, "floater")
                }
                seconds = turns(sides, device, count)
                ratio = statistics.median(
                    b / a for a, b in zip(seconds[base], seconds["floater"], strict=True)
                )
                ms = [f"{1e3 * statistics.median(seconds[name]):,.1f}" for name in (base, "floater")]
                rows.append([model, base, precision, "yes" if compiled else "no", *ms, f"{ratio - 1:+.1%}"])
                torch.compiler.reset()
    return rows


def encodings(names: Sequence[str], lengths: Sequence[int], arguments: argparse.Namespace) -> Rows:
    """Measure encodings against none, as `train.py` does, with each attention in float32 and bfloat16."""
    rows = []
    for length in lengths:
        for name in names:
            cells = [name, f"{length:,}"]
            for attention, dtype in product(ATTENTIONS, PRECISIONS.values()):
                arguments.attention = attention
                device = arguments.device.split(":")[0]
                with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
                    try:
                        row = train.measured(name, length, arguments)
                    except (PositionError, torch.OutOfMemoryError) as error:
                        row = {"skipped": str(error).splitlines()[0][:60]}
                if "skipped" in row:
                    cells += [row["skipped"], ""]
                else:
                    cells += [f"{row['ratio']:.2f}", f"{row['memory']:.2f}"]
            rows.append(cells)
    return rows


def table(columns: Sequence[str], rows: Rows) -> str:
    """Return a Markdown table."""
    lines = [list(columns), ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def page(machine: str, parts: Sequence[tuple[str, str]], toy: bool) -> str:
    """Return the page of measured tables."""
    said = "toy sizes, no measurement of real ones; nothing was measured on CUDA" if toy else "medians"
    return (
        "\n\n".join(
            ["# Performance on a GPU", f"Written by `python benchmarks/gpu.py` on {machine}: {said}."]
            + [f"## {title}\n\n{text}" for title, text in parts]
        )
        + "\n"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Take the requested measurements and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--toy", action="store_true", help="toy sizes, to check that it runs")
    parser.add_argument("--unmeasured", action="store_true", help="write the page without measurements")
    parser.add_argument("--device", default="cuda:0", help="ignored with --toy where there is none")
    parser.add_argument("--encodings", help="names, as in rotary,t5 (default: all)")
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args(argv)
    if arguments.unmeasured:
        write(arguments.page, UNMEASURED)
        return
    if not torch.cuda.is_available():
        if not arguments.toy:
            parser.error(
                "there is no GPU; --toy runs toy sizes on the CPU, --unmeasured writes the page without"
            )
        arguments.device = "cpu"
    if arguments.toy and arguments.page == PAGE:
        parser.error("toy sizes are no results: give another --page")
    toy, device, count = arguments.toy, arguments.device, 1 if arguments.toy else 7
    names = arguments.encodings.split(",") if arguments.encodings else [n for n in catalogue() if n != "none"]
    sized = argparse.Namespace(
        device=device,
        clock="wall",
        peers=False,
        most_parameters=400_000_000,
        turns=count,
        **({"tokens": 32, "width": 64, "layers": 1} if toy else {"tokens": 65536, "width": 512, "layers": 6}),
    )
    lengths = (8, 16) if toy else (128, 512, 2048, 8192, 16384)
    parts = [
        (
            "Solves",
            "18 starting vectors, forward and backward, ms. A fresh solve selects its mesh, which\n"
            "a training keeps. Ratios are to a fresh solve.\n\n"
            + table(
                ("dim", "positions", "kept mesh", "fresh", "paper's setting", "dopri5"),
                solves((8,) if toy else (512, 1024), lengths, 8 if toy else 2048, device, count),
            ),
        ),
        (
            "Training steps",
            "Forward, backward and Adam, ms; a flow is solved at every step.\n\n"
            + table(
                ("model", "without FLOATER", "precision", "compiled", "ms", "with FLOATER, ms", "overhead"),
                overheads(toy, device, count),
            ),
        ),
        (
            "Encodings",
            "Tokens a second and peak memory of a training step, over those of `none` with the same\n"
            "`attn_implementation`. FlexAttention computes content-free biases and masks,\n"
            "SDPA the others.\n\n"
            + table(
                (
                    *("encoding", "positions"),
                    *(
                        column
                        for kind, precision in product(ATTENTIONS, PRECISIONS)
                        for column in (f"{kind}, {precision}: speed", "memory")
                    ),
                ),
                encodings(names, lengths[:2] if toy else (512, 2048, 8192), sized),
            ),
        ),
    ]
    machine = torch.cuda.get_device_name(device) if device.startswith("cuda") else "a CPU"
    write(arguments.page, page(f"{machine}, torch {torch.__version__}", parts, toy))


def write(path: Path, text: str) -> None:
    """Write a page, with the table of read-backs at its end, which tests hold and nothing here measures."""
    _, heading, table = PAGE.read_text(encoding="utf-8").partition("\n## Read-backs\n")
    path.write_text(text + heading + table, encoding="utf-8")


if __name__ == "__main__":
    main()
