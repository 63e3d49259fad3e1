"""A parallel map over lines of text that keeps only a few in memory."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_AT_ONCE = 20_000
"""Number of items in memory for each process."""


def mapped(function: Callable[[_In], _Out], items: Iterable[_In], processes: int) -> Iterator[_Out]:
    """Apply a function to items in their order.

    Args:
        function: a function that other processes can import.
        items: items, read on demand.
        processes: number of processes; with 1, this process does the work.

    Example:
        >>> list(mapped(abs, [-1, 2], 1))
        [1, 2]
    """
    if processes == 1:
        yield from map(function, items)
        return
    rest: Iterator[Any] = iter(items)
    ignore = signal.signal, (signal.SIGINT, signal.SIG_IGN)  # of Ctrl-C: this process ends the others
    with multiprocessing.get_context("spawn").Pool(processes, *ignore) as pool:
        while some := list(itertools.islice(rest, _AT_ONCE * processes)):
            yield from pool.map(function, some, chunksize=_AT_ONCE // 10)
