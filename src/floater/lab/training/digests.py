"""Digests of values and of the files that options name, recorded to detect later changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from floater.lab.text.ragged import Groups, TextLines
from floater.lab.training.contents import contents
from floater.lab.training.named_files import paths_in

_MANY = 2**13
_PLAIN = {type(None), bool, int, float, str, bytes}


def values_digest(value: Any) -> str | None:
    """Return the SHA-256 of texts, numbers and arrays in nested lists, dicts and dataclasses.

    Names of classes and fields do not affect it.

    Args:
        value: examples, or parts of them.

    Returns:
        The digest; None if there is something of another type in the value.

    Example:
        >>> len({values_digest(value) for value in (["ab", 1], ["ab", 1], ["a", "b", 1])})
        2
        >>> values_digest([object()]) is None
        True
    """
    digest = hashlib.sha256()
    try:
        for part in _parts(value):
            digest.update(part)
    except TypeError:
        return None
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield bytes that determine a value.

    Raises:
        TypeError: if it has a type of which this is not known.
    """
    if type(value) in _PLAIN:
        yield repr(value).encode("utf-8", "surrogatepass")
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, Tensor) and value.dtype == torch.bfloat16:  # NumPy has none
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield from _parts(value.view(torch.int16))
    elif isinstance(value, Tensor):
        yield from _parts(value.detach().cpu().numpy())
    elif isinstance(value, TextLines | Groups):  # as the lists that they stand for
        yield f"[{len(value)}".encode()
        yield from _plain_parts(value)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _parts([getattr(value, field.name) for field in fields(value)])
    elif isinstance(value, Mapping):
        yield b"{"
        yield from _parts([*value.items()])
    elif isinstance(value, list | tuple):
        yield f"[{len(value)}".encode()
        if _is_plain(value):  # much faster than one by one
            yield from _plain_parts(value)
        else:
            for each in value:
                yield from _parts(each)
                yield b","
    else:
        raise TypeError(f"no digest of {type(value).__name__}")


def _plain_parts(values: Sequence[Any]) -> Iterator[bytes]:
    for start in range(0, len(values), _MANY):
        yield repr([*values[start : start + _MANY]]).encode("utf-8", "surrogatepass")


def _is_plain(values: list[Any] | tuple[Any, ...]) -> bool:
    """Return whether nested lists and tuples contain only texts and numbers."""
    kinds = {*map(type, values)}
    return kinds <= _PLAIN or (kinds <= {list, tuple} and all(map(_is_plain, values)))


def digests(options: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the SHA-256 of every file or directory named by options.

    Args:
        options: options by name; a value that is the path of a file, or a list of such, is read. Of a
            directory it is that of the names and contents of all files in it, without hidden ones.

    Example:
        >>> digests({"window": 5, "source": "there is no such file"})
        {}
    """
    files = {name: paths for name, value in options.items() if (paths := paths_in(value))}
    return {name: [source.sha256 for source in sources] for name, sources in contents(files).items()}


def changed(record: Mapping[str, list[str]], options: Mapping[str, Any]) -> str | None:
    """Return the name of an option whose files are gone or have changed; None if there is none.

    Args:
        record: digests of the files, as `digests` returned them.
        options: options by name.
    """
    now = digests({name: options[name] for name in record if name in options})
    return next((name for name in record if name in options and now.get(name) != record[name]), None)
