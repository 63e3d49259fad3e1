"""Training speed and memory of every position model, as ratios to no position information.

A 6-layer encoder of width 512, forward and backward, the same tokens a step at every length. Each encoding
alternates with `none`, so that other load of the machine affects both. A ratio of 0.9
means 90 % of the tokens a second of `none`; a memory of 1.1 that a step allocates 10 % more at its peak,
beyond weights. The last column compares with the goal, where there is one. Denormal numbers are flushed to
zero: a softmax produces them for distant keys, and they slow CPUs down, but not GPUs.

    python benchmarks/train.py
    python benchmarks/train.py --encodings rotary,t5,shaw --lengths 512 --turns 5
    python benchmarks/train.py --keep kept.json      # measures the encodings that are not in it
    python benchmarks/train.py --peers               # against x-transformers, same schemes and sizes
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from floater import FloaterConfig, Positions, build, catalogue
from floater.encodings import StackSpec
from floater.encodings.measure import count
from floater.transformer.stacks import Encoder
from stored import add_csv, show

# no goal: recurrent, random or with word embeddings of their own
FREE = (
    *("rnn", "rnn_transformer", "rr_transformer", "spe_sine", "spe_conv"),
    *("complex", "complex_attention", "universal", "pnat", "xl_heads"),
)
NO_TABLE = {"use_abs_pos_emb": False}
PEERS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # our options; theirs of the layers; theirs of the wrapper
    "none": ({}, {}, NO_TABLE),
    "learned": ({}, {}, {}),
    "rotary": ({}, {"rotary_pos_emb": True, "rotary_emb_dim": 64}, NO_TABLE),
    "sinusoidal": ({}, {}, {"scaled_sinu_pos_emb": True}),
    "xpos": ({}, {"rotary_pos_emb": True, "rotary_emb_dim": 64, "rotary_xpos": True}, NO_TABLE),
    "pope": ({}, {"polar_pos_emb": True, "rotary_emb_dim": 64}, NO_TABLE),
    "alibi": ({}, {"alibi_pos_bias": True}, NO_TABLE),
    # their fused attention supports none of these biases
    "t5": ({"scaled": True}, {"rel_pos_bias": True, "attn_flash": False}, NO_TABLE),
    "dynamic_bias": ({"log_distance": False}, {"dynamic_pos_bias": True, "attn_flash": False}, NO_TABLE),
    "forgetting": ({}, {"attn_data_dependent_alibi": True, "attn_flash": False}, NO_TABLE),
    "cope": ({"positions": 16}, {"attn_use_cope": True, "attn_flash": False}, NO_TABLE),
}
# theirs are for decoders only: both sides are causal
CAUSAL_PEERS = "xpos", "pope", "forgetting", "cope"
Step = Callable[[], float]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def bar(name: str, length: int) -> float | None:
    """Return the goal of an encoding, a ratio of tokens a second, if it has one."""
    row = build(name, dim=64, heads=8, layers=2, max_length=16)
    if name in (*FREE, "none", "floater") or row.overrides("logits", "weights", "value_bias"):
        return None
    if not row.overrides("bias", "mask"):
        return 0.9
    if name in CONTENT:
        return None
    if not any(count(name, StackSpec(dim=64, heads=8, layers=2, max_length=16)).values()):
        return 0.85
    return 0.5 if length > 512 else 0.7


# biases that depend on queries or keys
CONTENT = (
    "chang",
    "cope",
    "deberta",
    "forgetting",
    "graph_gru",
    "huang1",
    "huang2",
    "huang3",
    "huang4",
    "shaw",
    "shaw_absolute",
    "structural",
    "tener",
    "transformer_xl",
)


def config(name: str, length: int, arguments: argparse.Namespace, **changes: Any) -> FloaterConfig:
    """Return the configuration of the encoder."""
    sizes = {
        "vocab_size": 1000,
        "hidden_size": arguments.width,
        "intermediate_size": 4 * arguments.width,
        "num_attention_heads": arguments.width // 64,
        "num_hidden_layers": arguments.layers,
        "training_length": length,
        "dropout": 0.0,
        "position": name,
        "attn_implementation": arguments.attention,
    }
    return FloaterConfig(**(sizes | changes))


def example_positions(name: str, length: int, device: str) -> Positions:
    """Return positions with all fields that a model reads; trees and graphs are binary trees."""
    at = torch.arange(length)[None]
    if hasattr(catalogue()[name], "needs"):
        return Positions.tree([[(i - 1) // 2 if i else -1 for i in range(length)]]).to(device)
    more = {
        "language": at * 0,
        "token": at * 0,
        "reordered": at.flip(1),
        "target_length": torch.tensor([length]),
    }
    return Positions(at, at, **more).to(device)


def stepping(
    forward: Callable[[], Tensor], module: nn.Module, device: str, clock: Callable[[], float]
) -> Step:
    """Return a function that runs a forward and a backward pass and returns its seconds."""

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    def step() -> float:
        wait()
        began = clock()
        forward().square().mean().backward()
        wait()
        spent = clock() - began
        module.zero_grad(set_to_none=False)
        return spent

    return step


def ours(name: str, length: int, arguments: argparse.Namespace, **changes: Any) -> Step:
    torch.manual_seed(0)
    device = arguments.device
    causal = arguments.peers and name in CAUSAL_PEERS
    encoder = Encoder(config(name, length, arguments, **changes), causal=causal).to(device).train()
    positions = example_positions(name, length, device)
    x = torch.randn(arguments.tokens // length, length, arguments.width, device=device)
    return stepping(lambda: encoder(x, positions), encoder, device, CLOCKS[arguments.clock])


def theirs(name: str, length: int, arguments: argparse.Namespace) -> Step:
    import x_transformers

    torch.manual_seed(0)
    _, layers, wrapper = PEERS[name]
    stack = x_transformers.Decoder if name in CAUSAL_PEERS else x_transformers.Encoder
    attention = stack(
        dim=arguments.width,
        depth=arguments.layers,
        heads=arguments.width // 64,
        attn_dim_head=64,
        **({"attn_flash": True} | layers),
    )
    model = x_transformers.ContinuousTransformerWrapper(max_seq_len=length, attn_layers=attention, **wrapper)
    model = model.to(arguments.device).train()
    x = torch.randn(arguments.tokens // length, length, arguments.width, device=arguments.device)
    return stepping(lambda: model(x), model, arguments.device, CLOCKS[arguments.clock])


def peak(step: Step) -> int:
    """Return the peak of the bytes that a step allocates, beyond those allocated before."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    held = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def compared(base: Step, other: Step, turns: int) -> dict[str, Any]:
    """Return the seconds of both in alternating turns, after two of warm-up, and their ratios, base /
    other."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(-2, turns):
        for which in (0, 1) if turn % 2 else (1, 0):
            spent = (base, other)[which]()
            if turn >= 0:
                seconds[which].append(spent)
    ratios = sorted(a / b for a, b in zip(*seconds, strict=True))
    return {
        "seconds": statistics.median(seconds[1]),
        "ratio": statistics.median(ratios),
        "least": ratios[0],
        "most": ratios[-1],
        "memory": peak(other) / peak(base),
    }


def measured(name: str, length: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure an encoding against `none`, or x-transformers' model of the same encoding against ours."""
    if arguments.peers:
        changes = {"norm_first": True, "activation_function": "gelu", "position_options": PEERS[name][0]}
        return compared(
            theirs(name, length, arguments), ours(name, length, arguments, **changes), arguments.turns
        )
    size = sum(
        count(name, StackSpec(arguments.width, arguments.width // 64, arguments.layers, length)).values()
    )
    if size > arguments.most_parameters:
        return {"skipped": f"{size:,} parameters"}
    return compared(ours("none", length, arguments), ours(name, length, arguments), arguments.turns)


def cells(name: str, length: int, result: dict[str, Any], arguments: argparse.Namespace) -> list[str]:
    """Return the row of an encoding at a length."""
    if "skipped" in result:
        numbers, goal = [result["skipped"], "", ""], None
    else:
        spread = f"{result['least']:.3f} to {result['most']:.3f}"
        numbers, goal = [f"{result['ratio']:.3f}", spread, f"{result['memory']:.2f}"], bar(name, length)
    goals = [] if arguments.peers else ["" if goal is None else str(goal)]
    return [name, f"{length:,}", *numbers, *goals]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encodings", help="names, as in rotary,t5 (default: all)")
    parser.add_argument("--lengths", default="128,512,2048")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=2048, help="of a step")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: of this process, on a busy machine's CPU"
    )
    parser.add_argument("--attention", choices=("sdpa", "flex_attention"), default="sdpa")
    parser.add_argument("--most-parameters", type=int, default=400_000_000, help="of a row that is measured")
    parser.add_argument(
        "--keep", type=Path, help="a file for results; those that it holds are not taken again"
    )
    parser.add_argument("--peers", action="store_true", help="against x-transformers instead of none")
    add_csv(parser)
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    encodings = list(PEERS) if arguments.peers else [name for name in catalogue() if name != "none"]
    names = arguments.encodings.split(",") if arguments.encodings else encodings
    if wrong := [name for name in names if name not in encodings]:
        parser.error(f"no such row: {', '.join(wrong)}; there are {', '.join(encodings)}")
    kept: dict[str, Any] = {}
    if arguments.keep and arguments.keep.exists():
        kept = json.loads(arguments.keep.read_text())

    base = "x-transformers, same scheme" if arguments.peers else "none"
    print(
        f"{arguments.layers} layers of width {arguments.width}, {arguments.tokens:,} tokens a step, "
        f"{arguments.turns} turns, {torch.get_num_threads()} threads, {arguments.device}, "
        f"{arguments.clock} clock, torch {torch.__version__}; ratios to {base}, median and range\n"
    )

    def rows() -> Iterator[list[str]]:
        for length, name in product(map(int, arguments.lengths.split(",")), names):
            key = f"{'peers ' * arguments.peers}{name} {length} {arguments.width} {arguments.tokens}"
            if key not in kept:
                kept[key] = measured(name, length, arguments)
                gc.collect()
                if arguments.keep:
                    arguments.keep.write_text(json.dumps(kept, indent=1) + "\n")
            yield cells(name, length, kept[key], arguments)

    columns, name = ["encoding", "length", "ratio", "range", "memory"], "peers"
    if not arguments.peers:
        columns, name = [*columns, "goal"], "encodings"
    show(columns, rows(), arguments.csv, name, keys=2)


if __name__ == "__main__":
    main()
