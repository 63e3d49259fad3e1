"""The command `floater`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from signal import SIGINT
from typing import Any

from floater.errors import reason
from floater.interruption import Interrupted, raising


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: command line without the program's name; by default that of the process.

    Returns:
        The exit code: 0 for success, 1 for a failure, 2 for an error that a user can fix, and 128 plus the
        number of a signal that ended the command: 130 for Ctrl-C, 143 for SIGTERM, 138 for SIGUSR1.

    Example:
        >>> main(["translate", "no-such-run"])
        2
    """
    received: Sequence[int] = ()
    try:  # around the signal handlers: a signal may arrive while they are restored
        with warnings.catch_warnings(), raising() as received:
            warnings.showwarning = _one_line
            return _run(arguments)
    except (Exception, KeyboardInterrupt) as error:
        if not (received or isinstance(error, KeyboardInterrupt)):
            raise
        stop = error if isinstance(error, Interrupted) else Interrupted((*received, SIGINT)[0])
        if message := str(stop):
            _fail(message)
        return stop.exit_code


def _run(arguments: Sequence[str] | None) -> int:
    """Run the command line and report an error in one line."""
    from floater.cli.arguments import parse  # here a signal that arrives meanwhile is handled

    code = 0
    try:
        parsed = parse(arguments)
        code = parsed.command(parsed) or 0
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe: discard what Python writes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ModuleNotFoundError as error:
        if (error.name or "floater").startswith("floater"):
            raise
        install = "which is not installed; type: pip install 'floater[train]'"
        return _fail(f"this command needs {error.name}, {install}")
    except OSError as error:
        named = error.filename is not None
        return _fail(f"{error.filename}: {error.strerror}" if named else reason(error))
    except (ValueError, RuntimeError) as error:
        if (refused := _code(error)) is None:
            raise
        return _fail(str(error), refused)
    return code


def _code(error: Exception) -> int | None:
    """Return the exit code of an error that is reported to the user, or None for a bug."""
    from floater.encodings import PositionError
    from floater.errors import DataError
    from floater.flow import FlowError, SpanTooLong

    if isinstance(error, FlowError):
        return 2 if isinstance(error, SpanTooLong) else 1
    refused: tuple[type[Exception], ...] = (DataError, PositionError)
    if "floater.settings" in sys.modules:  # it requires an extra, and is imported only when settings are read
        refused += (sys.modules["floater.settings"].SettingsError,)
    return 2 if isinstance(error, refused) else None


def _fail(message: str, code: int = 2) -> int:
    print(f"floater: {' '.join(message.split())}", file=sys.stderr)
    return code


def _one_line(message: Warning | str, *args: Any, **kwargs: Any) -> None:
    print(f"floater: warning: {' '.join(str(message).split())}", file=sys.stderr)
