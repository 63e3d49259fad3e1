"""Processes that wait for the first one of them, however long it takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from accelerate import PartialState

_PATIENCE = timedelta(days=7)


@contextmanager
def main_process_first() -> Iterator[None]:
    """Run the block in the main process, then in the others.

    Accelerate's context of this name waits in a collective of the device, which gives up after 10 minutes
    with NCCL. Here the others wait on the CPU, for as long as the first one needs, or until it ends.

    Example:
        >>> with main_process_first():
        ...     print("encode the data")
        encode the data
    """
    state = PartialState()
    group = dist.new_group(backend="gloo", timeout=_PATIENCE) if state.num_processes > 1 else None
    if group and not state.is_main_process:
        dist.barrier(group)
    yield
    if group:
        if state.is_main_process:
            dist.barrier(group)
        dist.destroy_process_group(group)
