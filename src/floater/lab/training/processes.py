"""Processes that wait for the first one of them, however long it takes."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from accelerate import PartialState

from floater.errors import DataError, first_line
from floater.lab.interruption import fatal

_PATIENCE = timedelta(days=7)
_REPORT = 3.0  # seconds in which a process usually reports its error, before torchrun ends it
_ENDED = re.compile("Connection (closed|reset) by peer")
logger = logging.getLogger(__name__)


@contextmanager
def meeting() -> Iterator[None]:
    """Log that the block waits for other processes, if any, and let a signal terminate it immediately.

    The block makes a `PartialState`, which waits in C++, where no handler of Python runs. The variables of
    launchers are settled.

    Raises:
        DataError: if the processes cannot meet, as where another program listens on the port.

    Example:
        >>> with meeting():
        ...     state = PartialState(cpu=True)
    """
    if os.environ.get("WORLD_SIZE", "1") == "1" or PartialState._shared_state:
        yield
        return
    size, address, port = map(os.environ.__getitem__, ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    if os.environ["LOCAL_RANK"] == "0":
        logger.info("waiting for WORLD_SIZE=%s processes at %s:%s", size, address, port)
    try:
        with fatal():
            yield
    except dist.DistError as error:
        why, hint = first_line(error), ""
        if "EADDRINUSE" in why:
            hint = "; set another MASTER_PORT, and a RANK of its own for each process, as torchrun does"
        raise DataError(f"the {size} processes cannot meet at {address}:{port} ({why}){hint}") from error


@contextmanager
def in_company() -> Iterator[None]:
    """Report in one line that another process has ended, by the error of gloo that this causes here.

    Raises:
        DataError: if another process has ended.

    Example:
        >>> with in_company():
        ...     raise RuntimeError("[pair.cc:553] Connection closed by peer [10.0.0.2]:24992.")
        Traceback (most recent call last):
        floater.errors.DataError: another process of this training has ended (see its messages and ...
    """
    try:
        yield
    except RuntimeError as error:
        if not _ENDED.search(str(error)):
            raise
        raise DataError(
            "another process of this training has ended (see its messages and the launcher's); start the "
            "training again to resume from the last checkpoint"
        ) from error


@contextmanager
def main_process_first() -> Iterator[None]:
    """Run the block in the main process, then in the others; if it fails there, the others exit with code 2.

    Accelerate's context of this name waits in a collective of the device, which gives up after 10 minutes
    with NCCL. Here the others wait on the CPU, for as long as the first one needs, or until it ends.

    Example:
        >>> with main_process_first():
        ...     print("encode the data")
        encode the data
    """
    state = PartialState()
    if state.num_processes == 1:
        yield
        return
    group = dist.new_group(backend="gloo", timeout=_PATIENCE)
    failed = torch.zeros(1, dtype=torch.uint8)
    if state.is_main_process:
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # others may have ended
                dist.broadcast(failed.fill_(1), 0, group)
            raise
        dist.broadcast(failed, 0, group)
    else:
        dist.broadcast(failed, 0, group)
        if failed:  # the main process reports the error; a launcher ends it once another one ends
            with suppress(KeyboardInterrupt):
                time.sleep(_REPORT)
            dist.destroy_process_group()  # its threads can abort the exit
            raise SystemExit(2)
        yield
    dist.destroy_process_group(group)
