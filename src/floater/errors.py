"""Errors that a user can fix: unusable data and directories, each with a message of one line."""

from __future__ import annotations

import difflib
import os
import pathlib
from collections.abc import Iterable

Path = str | os.PathLike[str]


class DataError(ValueError):
    """Data or a directory that cannot be used; the message is one line."""


def no_directory(path: Path) -> DataError:
    """Return the refusal of a path that leads to no directory, with the nearest one beside it that is there.

    Example:
        >>> no_directory("/no/such/place")
        DataError('/no/such/place: there is no such directory')
    """
    folder = pathlib.Path(path)
    names = [other.name for other in folder.parent.iterdir()] if folder.parent.is_dir() else []
    near = [folder.parent / name for name in difflib.get_close_matches(folder.name, names)]
    hint = next((f"; did you mean {other}?" for other in near if other.is_dir()), "")
    return DataError(f"{path}: there is no such directory{hint}")


def nearest(name: object, valid: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest valid one, in any case, or all of them.

    Example:
        >>> nearest("cola", ["CoLA", "RTE"]), nearest("x", ["CoLA", "RTE"])
        ("did you mean 'CoLA'?", 'there are: CoLA, RTE')
    """
    lower = {each.lower(): each for each in valid}
    near = difflib.get_close_matches(str(name).lower(), lower, n=1)
    return f"did you mean '{lower[near[0]]}'?" if near else f"there are: {', '.join(lower.values())}"


def install(extra: str) -> str:
    """Return the command that installs an extra from where the library came: an index, a wheel or a clone.

    Example:
        >>> install("lab").startswith("pip install ")
        True
    """
    import importlib.metadata
    import json
    from urllib.parse import unquote, urlparse

    clone = pathlib.Path(__file__).parents[2]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e '{clone}[{extra}]'"
    try:
        record = importlib.metadata.distribution("floater").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # its folder is on the path
        record = None
    path = unquote(urlparse(json.loads(record).get("url", "")).path) if record else ""
    name = path if path and os.path.exists(path) else "floater"
    return f"pip install '{name}[{extra}]'"


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message, or its name.

    Example:
        >>> first_line(ValueError("\\nwrong\\nin many ways")), first_line(KeyError())
        ('wrong', 'KeyError')
    """
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def reason(error: Exception) -> str:
    """Return why reading failed, in one line: in the words of the operating system, or in the exception's.

    Example:
        >>> reason(FileNotFoundError(2, "No such file or directory", "a")), reason(ValueError("no\\nzip"))
        ('No such file or directory', 'no zip')
    """
    number = getattr(error, "errno", None)
    return " ".join(str(error).split()) if number is None else os.strerror(number)
