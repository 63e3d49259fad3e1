"""Training on a CPU without the numbers that it is slow with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Take denormal numbers for zero, where the CPU can, until the end of the block.

    A softmax over logits that lie far apart makes many: those of T5, which are not scaled, or of ALiBi. To
    calculate with them takes several times as long, and they are below 1.2e-38.

    It holds for this thread and those that PyTorch starts within the block, which keep it after the end; not
    for those that it started before.

    Example:
        >>> with flush_denormals():
        ...     bool(torch.tensor(1e-40) * 2 == 0)
        True
        >>> bool(torch.tensor(1e-40) * 2 == 0)
        False
    """
    before = _flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _flushed() -> bool:
    denormal = torch.tensor(1, dtype=torch.int32).view(torch.float32)
    return not (denormal * 1).view(torch.int32)
