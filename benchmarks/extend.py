"""Compare the forward passes of an extended model and of the original, in paired steps.

Models with random weights, at a length of training and at the new length. The originals of a learned table
and of MPT have the new length from the start; rotary positions and other biases accept any length. Both
models take every step in turn (see `overhead.py`).

    python benchmarks/extend.py --busy                     # processor time, for a machine with other work
    python benchmarks/extend.py --what "llama yarn" --what "t5 flow" --steps 40
    python benchmarks/extend.py --operators                # no times: what a forward pass computes

`--operators` compares the operators that PyTorch executes, and the shapes of their outputs: passes with the
same operators in the same order cost the same on any machine.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    BertConfig,
    BertModel,
    BloomConfig,
    BloomModel,
    LlamaConfig,
    LlamaModel,
    MptConfig,
    MptModel,
    T5Config,
    T5EncoderModel,
)

import floater
from operators import Operators
from overhead import columns, paired, ratio
from plug import step
from stored import show

WIDTH, LAYERS, HEADS, WORDS = 256, 4, 4, 1000


def llama(old: int) -> Any:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 3 * WIDTH, "num_hidden_layers": LAYERS}
    return LlamaModel(
        LlamaConfig(
            **sizes, num_attention_heads=HEADS, vocab_size=WORDS, max_position_embeddings=old, use_cache=False
        )
    )


def bert(old: int) -> Any:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": LAYERS}
    return BertModel(
        BertConfig(**sizes, num_attention_heads=HEADS, vocab_size=WORDS, max_position_embeddings=old)
    )


def t5(old: int) -> Any:
    sizes = {"d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 4 * WIDTH, "num_layers": LAYERS}
    return T5EncoderModel(T5Config(**sizes, num_heads=HEADS, vocab_size=WORDS))


def bloom(old: int) -> Any:
    return BloomModel(
        BloomConfig(
            hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=WORDS, seq_length=old, use_cache=False
        )
    )


def mpt(old: int) -> Any:
    sizes = {"d_model": WIDTH, "n_layers": LAYERS, "n_heads": HEADS}
    return MptModel(MptConfig(**sizes, vocab_size=WORDS, max_seq_len=old, use_cache=False))


MODELS: dict[str, Callable[[int], Any]] = {
    "llama": llama,
    "bert": bert,
    "t5": t5,
    "bloom": bloom,
    "mpt": mpt,
}
BOUNDED = ("bert", "mpt")  # their original has the new length from the start
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama linear": ("linear", {}),
    "llama ntk": ("ntk", {}),
    "llama llama3": ("llama3", {}),
    "llama yarn": ("yarn", {}),
    "llama longrope": ("longrope", {}),
    "llama dynamic": ("dynamic", {}),
    "llama dynamic, not declared": ("dynamic", {"declared": False}),
    "llama clex": ("clex", {}),
    "llama clex, not declared": ("clex", {"declared": False}),
    "llama log_n": ("log_n", {}),
    "llama self_extend": ("self_extend", {}),
    "bert flow": ("flow", {}),
    "bert repeat": ("repeat", {}),
    "bert interpolation": ("interpolation", {}),
    "bert hierarchical": ("hierarchical", {}),
    "t5 flow": ("flow", {"trained": 0}),
    "bloom flow": ("flow", {}),
    "mpt flow": ("flow", {}),
}


@torch.no_grad()
def computed(model: Any, ids: torch.Tensor) -> tuple[list[tuple[str, Any, Any]], int]:
    """Return the operators of a forward pass, and the floating-point operations of its products."""
    model(ids)  # flows that are solved once are solved
    with Operators() as operators:
        model(ids)
    with FlopCounterMode(display=False) as products:
        model(ids)
    return operators.calls, products.get_total_flops()


def compare_operators(name: str, base: Any, other: Any, ids: torch.Tensor) -> list[str]:
    """Return a row of the table."""
    (before, flops), (after, now) = computed(base, ids), computed(other, ids)
    same = "the same" if before == after else f"{len(after) - len(before)} more"
    return [name, str(len(before)), str(len(after)), same, f"{now / flops:.4f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", choices=CASES, action="append", help="one or more; all if not given")
    parser.add_argument("--old", type=int, default=256)
    parser.add_argument("--new", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=2048, help="of a batch")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--busy", action="store_true", help="processor time, for a machine with other work")
    parser.add_argument("--operators", action="store_true", help="compare operators in place of times")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.busy else time.perf_counter
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}\n")
    heads = ["step", "operators, original", "extended", "sequence", "products, ratio"]
    show(heads if arguments.operators else columns("base", "other"), rows(arguments, clock))


def rows(arguments: argparse.Namespace, clock: Callable[[], float]) -> Iterator[list[str]]:
    """Yield a row for each method and length."""
    for name in arguments.what or CASES:
        method, options = CASES[name]
        kind = name.split()[0]
        if "trained" in options:
            options = {"trained": arguments.old}
        torch.manual_seed(0)
        base = MODELS[kind](arguments.new if kind in BOUNDED else arguments.old).eval()
        other = copy.deepcopy(base) if kind not in BOUNDED else MODELS[kind](arguments.old).eval()
        floater.extend(other, arguments.new, method, **options)
        for length in (arguments.old, arguments.new):
            ids = torch.randint(WORDS, (arguments.tokens // length, length))
            label = f"{name}, {len(ids)} texts of {length}"
            if arguments.operators:
                yield compare_operators(label, base, other, ids)
                continue
            steps = [step(model, ids, False, clock) for model in (base, other)]
            yield ratio(label, *paired(*steps, arguments.steps))


if __name__ == "__main__":
    main()
