"""The command `floater`."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from signal import SIGINT, SIGPIPE, Signals
from typing import Any

from floater.errors import install, reason
from floater.lab.cli.streams import discard, is_unread, usable_streams
from floater.lab.interruption import Interrupted, raising

_EXTRAS = {"ray": "ray", "submitit": "slurm", "tensorboard": "tensorboard"}
"""The extra of a package that is not in "lab"."""
_RESUMING = {"train", "study"}
_COMPUTING = {"train", "study", "evaluate", "predict", "translate", "extend", "plot", "demo"}
"""Commands that use more than one thread."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: command line without the program's name; by default that of the process.

    Returns:
        The exit code: 0 for success, 1 for a failure, 2 for an error that a user can fix, and 128 plus the
        number of a signal that ended the command: 130 for Ctrl-C, 143 for SIGTERM, 138 for SIGUSR1. It is 141
        if the reader of standard output goes away (SIGPIPE) from a command whose result is its output; other
        commands continue, as they do when the reader of standard error goes away.

    Example:
        >>> main(["translate", "no-such-run"])
        2
    """
    received: Sequence[int] = ()
    try:  # around the signal handlers: a signal may arrive while they are restored
        with usable_streams(), warnings.catch_warnings(), raising() as received:
            warnings.showwarning = _one_line
            return _run(arguments)
    except (Exception, KeyboardInterrupt) as error:
        if not (received or isinstance(error, KeyboardInterrupt)):
            raise
        stop = error if isinstance(error, Interrupted) else Interrupted((*received, SIGINT)[0])
        words = sys.argv[1:] if arguments is None else arguments
        if stop.is_default and not _RESUMING & {*words[:1]}:
            stop = Interrupted(stop.number, _stopped(stop.number))
        if message := str(stop):
            _fail(message)
        return stop.exit_code


def _run(arguments: Sequence[str] | None) -> int:
    """Run the command line and report an error in one line."""
    words = sys.argv[1:] if arguments is None else arguments
    _limit_threads(words)
    from floater.lab.cli.parser import parse  # here a signal that arrives meanwhile is handled

    code = 0
    try:
        parsed = parse(arguments)
        if words[0] != "train" and os.environ.get("MASTER_ADDR"):  # without it there is one process
            from floater.lab.training.launchers import refuse_several

            refuse_several(os.environ, words[0])
        code = parsed.command(parsed) or 0
        sys.stdout.flush()
    except BrokenPipeError:
        if not is_unread(sys.stdout):
            raise
        discard(sys.stdout)  # what Python writes at exit
        return 128 + SIGPIPE
    except ImportError as error:
        if (message := _missing(error)) is None:
            raise
        return _fail(message)
    except OSError as error:
        if (name := error.filename) is None:
            return _fail(reason(error))
        is_dangling = os.path.islink(name) and not os.path.exists(name)  # of which systems say "File exists"
        return _fail(f"{name}: {'a link that leads nowhere' if is_dangling else error.strerror}")
    except (ValueError, RuntimeError) as error:
        if (refused := _code(error)) is None:
            raise
        return _fail(str(error), refused)
    return code


def _missing(error: ImportError) -> str | None:
    """Return what to install where a package is absent or too old, or None for a bug."""
    package, _, module = (error.name or "floater").partition(".")
    absent = isinstance(error, ModuleNotFoundError)
    if package == "transformers" and (module or not absent):
        try:
            importlib.import_module("floater._hf")
        except ImportError as refusal:
            return str(refusal)
    if package == "floater" or not absent:
        return None
    extra = _EXTRAS.get(package, "lab")
    return f"this command needs {error.name}, which is not installed; type: {install(extra)}"


def _stopped(number: int) -> str:
    """Return the message of a command that a signal ended and that is no training."""
    return f"stopped by {Signals(number).name}; the command writes its result at the end: start it again"


def _limit_threads(words: Sequence[str]) -> None:
    """Limit a command that computes nothing to one thread, before torch is imported.

    Several threads of OpenMP that wait for one another burn minutes of a loaded machine.
    """
    if not _COMPUTING & {*words[:1]} or {"-h", "--help"} & {*words}:
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def _code(error: Exception) -> int | None:
    """Return the exit code of an error that is reported to the user, or None for a bug."""
    from floater.encodings import PositionError
    from floater.errors import DataError
    from floater.flow import FlowError, SpanTooLong

    if isinstance(error, FlowError):
        return 2 if isinstance(error, SpanTooLong) else 1
    return 2 if isinstance(error, DataError | PositionError) else None


def _fail(message: str, code: int = 2) -> int:
    """Print an error in one line and return the exit code."""
    print(f"floater: {' '.join(message.split())}", file=sys.stderr)
    return code


def _one_line(message: Warning | str, *args: Any, **kwargs: Any) -> None:
    """Print a warning in one line, as `warnings.showwarning` does in several."""
    print(f"floater: warning: {' '.join(str(message).split())}", file=sys.stderr)
