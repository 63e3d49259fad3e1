"""CPU time of one attention by the softmax and by linear attention.

    python benchmarks/linear.py [--csv docs/howto/positions]

Two heads of width 64, one text; the Performer has 266 random features. Milliseconds of CPU time, the best of
two.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from floater.transformer.linear import directions, feature_count, linear_attention
from stored import add_csv, show

LENGTHS = (1024, 2048, 4096, 8192, 16384)
WIDTH = 64
KINDS = "softmax", "linear", "performer", "performer, causal"


def milliseconds(attend: Callable[[], Tensor]) -> float:
    """Return the CPU time of a call, the best of two."""
    times = []
    for _ in range(2):
        start = time.process_time()
        attend()
        times.append(1000 * (time.process_time() - start))
    return min(times)


@torch.inference_mode()
def main() -> None:
    """Print a row for each length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    add_csv(parser)
    arguments = parser.parse_args()
    w = directions(feature_count(WIDTH), WIDTH, 0, torch.device("cpu"))

    def row(length: int) -> list[str]:
        q, k, v = torch.randn(3, 1, 2, length, WIDTH)
        kinds: dict[str, Callable[[], Tensor]] = {
            "softmax": lambda: scaled_dot_product_attention(q, k, v),
            "linear": lambda: linear_attention(q, k, v, scale=0.125),
            "performer": lambda: linear_attention(q, k, v, scale=0.125, w=w),
            "performer, causal": lambda: linear_attention(q, k, v, scale=0.125, w=w, causal=True),
        }
        return [f"{length:,}", *(f"{milliseconds(kinds[kind]):,.0f}" for kind in KINDS)]

    show(["tokens", *KINDS], map(row, arguments.lengths), arguments.csv, "linear")


if __name__ == "__main__":
    main()
