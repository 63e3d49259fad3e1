"""Versions of Transformers: a missing or too old one is refused in one line; names that changed.

`floater.transformer` and `floater.pretrained` import this module before anything else: deeper in them an
import would fail with the name of a module of Transformers, and without a hint of the extra that installs it.
"""

import re
from collections.abc import Mapping
from typing import Any

from floater.errors import install

OLDEST = (5, 23)
"""The oldest version that works: the lower bound of the extra "hf" in pyproject.toml."""

_NEEDS = "floater.transformer and floater.pretrained need Transformers"

try:
    import transformers
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    _message = f"{_NEEDS}, which is not installed; type: {install('hf')}"
    raise ModuleNotFoundError(_message, name="transformers") from error

_installed = transformers.__version__
_version = tuple(map(int, re.findall(r"\d+", _installed)[:2]))
if _version < OLDEST:
    _oldest = ".".join(map(str, OLDEST))
    _message = f"{_NEEDS} {_oldest} or newer, and {_installed} is installed"
    raise ImportError(f"{_message}; type: {install('hf')}", name="transformers")

CACHE = "cache" if _version >= (5, 24) else "past_key_values"
"""Name of a cache in the arguments and outputs of models: 5.24 renamed it."""


def one_cache(past_key_values: Any, cache: Any) -> Any:
    """Return the cache under either of its names; see `CACHE`.

    Raises:
        TypeError: if there are both.

    Example:
        >>> one_cache(None, None) is None
        True
    """
    if past_key_values is not None and cache is not None:
        raise TypeError(
            "past_key_values and cache are two names of one argument; give one, which generate of this "
            f"Transformers takes as {CACHE}"
        )
    return cache if past_key_values is None else past_key_values


def cache_in(arguments: Mapping[str, Any]) -> Any:
    """Return the cache among the arguments of a model or a part of it, under any of its names, or None.

    What continuous batching passes as `cache` is no `Cache`.

    Example:
        >>> cache_in({"past_key_values": None}) is None
        True
    """
    names = ("past_key_values", "layer_past")
    earlier = next((arguments[name] for name in names if arguments.get(name) is not None), None)
    cache = arguments.get("cache")
    return cache if earlier is None and isinstance(cache, transformers.Cache) else earlier
