"""The command `floater`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from floater.cli.arguments import parse
from floater.encodings import PositionError
from floater.flow import FlowError, SpanTooLong

EXTRA = "this command needs more packages: pip install 'floater[train]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; by default those of the process.

    Returns:
        The exit code: 0, 1 when the work failed, 2 for what a person can mend, 130 when interrupted.

    Example:
        >>> main(["translate", "no-such-run"])
        2
    """
    with warnings.catch_warnings():
        warnings.showwarning = _one_line
        code = 0
        try:
            parsed = parse(arguments)
            code = parsed.command(parsed) or 0
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has gone: nothing is left to say, at the exit of Python neither
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except ImportError as error:
            return _fail(f"{error}; {EXTRA}")
        except OSError as error:
            named = error.filename is not None
            return _fail(f"{error.filename}: {error.strerror}" if named else str(error))
        except KeyboardInterrupt:
            _fail("stopped; a training that is started again resumes from its last checkpoint")
            return 130
        except FlowError as error:
            code = _fail(str(error))
            return code if isinstance(error, SpanTooLong) else 1
        except ValueError as error:
            if not isinstance(error, _mendable()):
                raise
            return _fail(str(error))
    return code


def _mendable() -> tuple[type[ValueError], ...]:
    """What the data, the settings and the position models refuse with a message for a person."""
    from floater.errors import DataError
    from floater.settings import SettingsError

    return (DataError, PositionError, SettingsError)


def _fail(message: str) -> int:
    print(f"floater: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _one_line(message: Warning | str, *args: Any, **kwargs: Any) -> None:
    print(f"floater: warning: {message}", file=sys.stderr)
