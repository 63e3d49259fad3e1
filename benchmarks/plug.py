"""Cost of FLOATER in a plugged model, in paired steps against the model without it.

BERT with random weights and texts. Inference is a forward pass with baked vectors; training steps are
forward, backward and Adam with the flow frozen, or trained. Both models take every step in
alternating order, and the ratio of their times is printed with a 95 % interval (see
`overhead.py`).

    python benchmarks/plug.py                              # BERT-base shapes at length 512
    python benchmarks/plug.py --what inference --steps 20 --texts 4
    python benchmarks/plug.py --what trained --refresh-every 10
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification

import floater
from overhead import Step, columns, paired, ratio
from stored import add_csv, show

KINDS = {
    "inference": "inference, baked",
    "frozen": "training, frozen flow",
    "trained": "training, trained flow",
}


def step(model: Any, ids: torch.Tensor, train: bool, clock: Callable[[], float]) -> Step:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-5, fused=True)
    labels = torch.zeros(len(ids), dtype=torch.long)

    def once() -> float:
        began = clock()
        if train:
            model(input_ids=ids, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            with torch.no_grad():
                model(input_ids=ids)
        return clock() - began

    return once


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", choices=KINDS, action="append", help="one or more; all if not given")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--refresh-every", type=int, default=1)
    parser.add_argument("--busy", action="store_true", help="processor time, for a machine with other work")
    add_csv(parser)
    arguments = parser.parse_args()
    clock = time.process_time if arguments.busy else time.perf_counter
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}\n")
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.width // 64,
        intermediate_size=4 * arguments.width,
        max_position_embeddings=arguments.length,
    )
    ids = torch.randint(1000, 30000, (arguments.texts, arguments.length))
    every = arguments.refresh_every

    def measured(kind: str) -> list[str]:
        base = BertForSequenceClassification(config)
        other = copy.deepcopy(base)
        floater.plug(other, start="small", refresh_every=every, max_length=arguments.length)
        if kind == "inference":
            floater.bake(other, arguments.length)
        if kind == "frozen":
            other.floater.requires_grad_(False)
        train = kind != "inference"
        steps = [step(model.train(train), ids, train, clock) for model in (base, other)]
        cycle = every if kind == "trained" else 1
        times = paired(*steps, arguments.steps // cycle * cycle, cycle)
        return ratio(KINDS[kind], *times)

    show(columns("without", "plugged"), map(measured, arguments.what or KINDS), arguments.csv, "pretrained")


if __name__ == "__main__":
    main()
