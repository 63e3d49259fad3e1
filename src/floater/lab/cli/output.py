"""Results of commands: on standard output, as JSON, or in a file."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floater.errors import DataError
from floater.lab.cli.streams import ClosedOutput

if TYPE_CHECKING:
    from floater.lab.study.results import Results


def print_json(result: Any) -> None:
    """Print a result as JSON, with null for infinities and NaN, which JSON does not have."""
    print(json.dumps(_finite(result), indent=1, ensure_ascii=False, allow_nan=False))


def print_values(values: Mapping[str, Any]) -> None:
    """Print a line for each value."""
    left = max(map(len, values)) + 2
    for name, value in values.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        print(f"{name:<{left}}{shown}")


MEANINGS = {
    "loss_original": "loss of the checkpoint on validation rows, before its extension",
    "loss_before": "loss on validation rows before the first step",
    "loss": "loss on the validation set, in nats per predicted token, document or text",
    "long_loss_before": "loss on rows of evaluation.length tokens before the first step",
    "long_loss": "loss on rows of evaluation.length tokens, by default extend.length",
    "perplexity": "exp of the loss",
    "longest": "length of the longest training example",
    "averaged": "checkpoints whose mean is the final model",
    "cut_translations": "translations that reached the maximum length",
    "macro_f1": "mean of the F1 of the classes, in percent",
}
"""Meanings of the values of a training's result that their names do not say."""


def explain(values: Mapping[str, Any]) -> None:
    """Explain values of a training's result on standard error, in one line."""
    parts = [f"{name}: {MEANINGS[name]}" for name in values if name in MEANINGS]
    if parts:
        print(f"floater: {'; '.join(parts)}", file=sys.stderr)


def print_study(results: Results, *, as_json: bool) -> int:
    """Print the results of a study and return the exit code."""
    from floater.lab.study import tables

    if as_json:
        print_json(tables.records(results))
    elif results.outcomes:
        print(tables.scores(results).text())
    return int(any(outcome.status == "failed" for outcome in results.outcomes))


def _finite(value: Any) -> Any:
    """Return a value with None for infinities and NaN."""
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_writable(path: str | None, *inputs: str | None) -> None:
    """Refuse an output file that cannot be written, or that is an input, before the command runs.

    Args:
        path: path of the file; None for standard output.
        *inputs: paths of the input files.

    Raises:
        DataError: if the file is an input, or is named -, by which many tools mean standard output.
        OSError: if it cannot be written.
    """
    if not path:
        return
    if path == "-":
        raise DataError("the output is -; name /dev/stdout for standard output, or ./- for a file")
    file = Path(path)
    if file.is_symlink() and not file.exists():
        file = file.resolve()  # still to be written; the link stays
    if not file.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(file.parent))
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not file.exists():
        file.touch()
        file.unlink()
    elif not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    elif any(name and Path(name).exists() and file.samefile(name) for name in inputs):
        raise DataError(f"the output {path} is an input of the command; name another file")


def check_output(path: str | None, *inputs: str | None) -> None:
    """Refuse to begin work whose lines cannot be written, to a file or to standard output.

    Raises:
        DataError: if no file is named and standard output is closed; else see `check_writable`.
    """
    if not path and isinstance(sys.stdout, ClosedOutput):
        raise DataError("standard output is closed; name a file with --output FILE")
    check_writable(path, *inputs)


def write_lines(lines: Sequence[str], path: str | None) -> None:
    """Write lines to a file, completely or not at all; to standard output if the path is None.

    What a link leads to, a device or a pipe is written directly, as is a file in a directory where no other
    may be made.

    Raises:
        OSError: with the name of the file.
    """
    from floater.lab.training.files import write_whole

    text = "".join(f"{line}\n" for line in lines)
    if path:
        file = Path(path)
        is_plain = not file.is_symlink() and (file.is_file() or not file.exists())  # /dev/stdout is a link
        if is_plain and os.access(file.parent, os.W_OK):
            write_whole(file, text)
            return
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            error.filename = path
            raise
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
