"""An extension by which mkdocstrings reads the docstrings (`extensions` in mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Read the section "Example:" as the "Examples:" that Griffe knows, so that doctests become code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
