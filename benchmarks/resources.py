"""Time and memory of a training step by the size of the model, with sinusoids and with FLOATER.

Each line is measured in a separate process: a causal language model of a preset, two rows of 512 tokens,
forward, backward and Adam. Time is CPU time of one thread, the minimum of the measured steps; memory is the
peak of the process minus its memory after the imports. Prints a Markdown table; `--csv docs/performance`
stores it.

    python benchmarks/resources.py
    python benchmarks/resources.py --sizes tiny,small --steps 5
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from floater import FloaterConfig
from floater.transformer import FloaterForCausalLM
from stored import add_csv, show

ROWS, LENGTH, VOCABULARY = 2, 512, 32768


def peak() -> float:
    """Return the peak memory of this process, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(size: str, position: str, steps: int) -> dict[str, float]:
    """Return the time and memory of a training step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    before = peak()
    config = FloaterConfig.preset(size, vocab_size=VOCABULARY, training_length=LENGTH, position=position)
    model = FloaterForCausalLM(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    tokens = torch.randint(5, VOCABULARY, (ROWS, LENGTH))
    times = []
    for _ in range(steps + 1):  # the first selects the mesh and allocates Adam's moments
        start = time.process_time()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.process_time() - start)
    encoding = model.model.encoder.position
    return {
        "parameters": sum(p.numel() for p in model.parameters()) / 1e6,
        "position": sum(p.numel() for p in encoding.parameters()) / 1e6,
        "seconds": min(times[1:]),
        "memory": peak() - before,
    }


def main() -> None:
    """Measure every size in processes of their own, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="tiny,small,transformer-base,transformer-big")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("SIZE", "POSITION"), help=argparse.SUPPRESS)
    add_csv(parser)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*arguments.one, arguments.steps)))
        return
    columns = ["size", "parameters, M", "of the flow, M", "step, s: sinusoidal", "step: floater"]
    columns += ["memory, MiB: sinusoidal", "memory: floater"]

    def row(size: str) -> list[str]:
        measured = []
        for position in ("sinusoidal", "floater"):
            command = [sys.executable, __file__, "--steps", str(arguments.steps), "--one", size, position]
            measured.append(
                json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            )
        flow = measured[1]
        cells = [size, f"{flow['parameters']:.1f}", f"{flow['position']:.2f}"]
        cells += [f"{each['seconds']:.2f}" for each in measured]
        return cells + [f"{each['memory']:,.0f}" for each in measured]

    show(columns, map(row, arguments.sizes.split(",")), arguments.csv, "sizes")


if __name__ == "__main__":
    main()
