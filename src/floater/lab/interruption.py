"""Signals that stop a training: it finishes the step and writes a checkpoint.

SIGINT is what Ctrl-C sends, SIGTERM what most schedulers send before they kill, SIGUSR1 what SLURM sends
ahead of a time limit (``--signal=USR1@120``).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_REPEAT = 1.0
"""Seconds in which signals are one request: torchrun, srun and a study pass them on to their processes."""


class Interrupted(KeyboardInterrupt):
    """A signal ended the work.

    Args:
        number: number of the signal.
        message: one line; by default that of a training, "" for none.

    Attributes:
        number: number of the signal.
        is_default: whether the message is the default.
        exit_code: 128 and the signal's number, as a shell reports a process that a signal ended: 130 for
            SIGINT, 143 for SIGTERM, 138 for SIGUSR1.

    Example:
        >>> Interrupted(signal.SIGTERM).exit_code
        143
    """

    def __init__(self, number: int, message: str | None = None) -> None:
        name = signal.Signals(number).name
        default = f"stopped by {name}; start the training again to resume from its last checkpoint"
        super().__init__(default if message is None else message)
        self.number, self.is_default, self.exit_code = number, message is None, 128 + number


class StopRequest:
    """The first signal that requested a stop.

    Attributes:
        number: number of the signal; 0 for none.
    """

    def __init__(self) -> None:
        self.number = 0
        self._since = 0.0

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """Handle a signal: remember the first; a later one ends the process, as it does without a handler."""
        if not self.number:
            self.number, self._since = number, time.monotonic()
        elif time.monotonic() - self._since > _REPEAT:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


@contextmanager
def raising() -> Iterator[list[int]]:
    """Raise `Interrupted` for each of the signals until the end of the block.

    Outside the main thread, which alone handles signals, nothing changes.

    Yields:
        The numbers of the signals so far. What was raised for one may be lost: within an import, torch drops
        it, and Python 3.11 may wrap it, and another error follows.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise Interrupted(number)

    with _handled_by(stop):
        yield received


@contextmanager
def deferred() -> Iterator[StopRequest]:
    """Note a signal until the end of the block instead of acting on it; a second one ends the process.

    Yields: The request, which the work in the block checks where it can stop.

    Example:
        >>> with deferred() as request:
        ...     signal.raise_signal(signal.SIGTERM)
        >>> request.number == signal.SIGTERM
        True
    """
    request = StopRequest()
    with _handled_by(request.note):
        yield request


@contextmanager
def fatal() -> Iterator[None]:
    """Let a signal end the process at once until the end of the block, in which no handler could run."""
    with _handled_by(signal.SIG_DFL):
        yield


@contextmanager
def _handled_by(handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


def ignore_in_worker(_: int) -> None:
    """Leave it to the main process to stop: the ``worker_init_fn`` of a DataLoader."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
