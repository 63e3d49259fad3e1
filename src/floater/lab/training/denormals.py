"""Training on a CPU without denormal numbers, with which it is slow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero until the end of the block, if the CPU supports it.

    A softmax over widely spread logits yields many denormal numbers: such logits are those of T5, which are
    not scaled, or of ALiBi. Denormal numbers are below 1.2e-38, and arithmetic with them takes several times
    as long.

    The setting applies to this thread and to the threads that PyTorch starts within the block, which keep it
    after the end of the block. It does not apply to threads that PyTorch started before.

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
