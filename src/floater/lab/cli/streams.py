"""Standard streams that are closed, or whose reader goes away during the work."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


class ClosedOutput(io.TextIOWrapper):
    """A stand-in for a standard output that was closed before the process began; it discards all text."""

    def __init__(self) -> None:
        super().__init__(open(os.devnull, "wb"), encoding="utf-8")  # noqa: SIM115 - this one closes it


class LastingStream:
    """A text stream that survives the loss of its reader, its terminal or its disk; it discards the rest.

    Everything else is that of the stream.

    Args:
        stream: the stream, such as `sys.stderr`.

    Example:
        >>> reader, writer = os.pipe()
        >>> os.close(reader)
        >>> print("nobody reads this", file=LastingStream(open(writer, "w")), flush=True)
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        try:
            self._stream.write(text)
        except OSError:
            self._discard()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self._stream.flush()
        except OSError:
            self._discard()

    def _discard(self) -> None:
        """Discard what follows, and the buffer, which would be written at exit."""
        with suppress(OSError):
            discard(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def discard(stream: Any) -> None:
    """Discard what is written to a stream from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)


def is_unread(stream: Any) -> bool:
    """Return whether a stream is a pipe, a socket or a terminal whose other end has gone."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), select.POLLOUT)
    except OSError:  # a stream without a file
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


@contextmanager
def usable_streams() -> Iterator[None]:
    """Make the standard streams usable until the end of the block, whatever their initial state.

    Standard error survives the loss of its reader. A character that the encoding of standard output lacks, as
    Latin-1 does a dash, is written as its escape, as Python does on standard error. Closed streams are opened
    on the null device, because the next file that is opened would get their numbers, and what is written to a
    stream would end up in it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
    before = sys.stdout, sys.stderr
    if sys.stdout is None:
        sys.stdout = ClosedOutput()
    sys.stderr = ClosedOutput() if sys.stderr is None else LastingStream(sys.stderr)
    output: Any = sys.stdout
    is_strict = isinstance(output, io.TextIOWrapper) and output.errors == "strict"
    if is_strict:
        output.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        if is_strict:
            with suppress(OSError, ValueError):  # it is flushed, and may be closed
                output.reconfigure(errors="strict")
        sys.stdout, sys.stderr = before


@contextmanager
def outliving_terminal() -> Iterator[None]:
    """Continue to the end of the block when the terminal is closed or nobody reads standard output.

    For work whose result is in files. SIGHUP, which a terminal sends when it is closed, is ignored, as by
    `nohup`. A command whose result is in files has it as a decorator: `@outliving_terminal()`.
    """
    before = sys.stdout
    sys.stdout = LastingStream(sys.stdout)
    hangs_up = hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN) if hangs_up else None
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout = before
        if hangs_up:
            signal.signal(signal.SIGHUP, signal.SIG_DFL if handler is None else handler)
