"""Refuse a missing or too old Transformers in one line.

`floater.transformer` and `floater.pretrained` import this module before anything else: deeper in them an
import would fail with the name of a module of Transformers, and without a hint of the extra that installs it.
"""

import re

from floater.errors import install

OLDEST = (5, 20)
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
if tuple(map(int, re.findall(r"\d+", _installed)[:2])) < OLDEST:
    _oldest = ".".join(map(str, OLDEST))
    _message = f"{_NEEDS} {_oldest} or newer, and {_installed} is installed"
    raise ImportError(f"{_message}; type: {install('hf')}", name="transformers")
