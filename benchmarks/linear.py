"""CPU time of one attention by the softmax and by linear attention: `python benchmarks/linear.py`.

Two heads of width 64, one text; the Performer has 266 random features. Milliseconds of CPU time, the best of
two.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from floater.transformer.linear import directions, feature_count, linear_attention

LENGTHS = (1024, 2048, 4096, 8192, 16384)
WIDTH = 64


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
    """Print a line for each length."""
    w = directions(feature_count(WIDTH), WIDTH, 0, torch.device("cpu"))
    for length in LENGTHS:
        q, k, v = torch.randn(3, 1, 2, length, WIDTH)
        kinds: dict[str, Callable[[], Tensor]] = {
            "softmax": lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v),
            "linear": lambda q=q, k=k, v=v: linear_attention(q, k, v, scale=0.125),
            "performer": lambda q=q, k=k, v=v: linear_attention(q, k, v, scale=0.125, w=w),
            "causal": lambda q=q, k=k, v=v: linear_attention(q, k, v, scale=0.125, w=w, causal=True),
        }
        print(length, *(f"{name} {milliseconds(attend):.0f}" for name, attend in kinds.items()))


if __name__ == "__main__":
    main()
