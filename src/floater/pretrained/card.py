"""Model cards: the contents of a directory with a flow or an extension, and instructions to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from floater.pretrained.extending.install import extension_settings
from floater.pretrained.plugged import plugged

CARD = "README.md"

_WHOLE = """\
A `{kind}` {what}. Import `floater` before the model is loaded; Transformers alone refuses it.

```python
import floater
from transformers import {kind}

model = {kind}.from_pretrained("path/to/this/folder")  # or the Auto class, or a pipeline
```
"""

_PLUGGED = "with a flow for learned continuous positions (FLOATER, Liu et al. 2020) in its attention"
_CLOCK = "with a clock in each block, by which the text drives the rotation of its attention (FLOATER)"
_EXTENDED = "with positions that are extended from {old} to {new} tokens"

_FLOW = """\
Learned continuous positions (FLOATER, Liu et al. 2020) for a `{kind}`, apart from the model.

```python
import floater
from transformers import {kind}

model = {kind}.from_pretrained({base})
floater.load("path/to/this/folder", model)
```
"""


def write_card(directory: Path, model: Any, *, whole: bool) -> None:
    """Write README.md beside a plugged or extended model, or a flow alone, unless it exists.

    Args:
        directory: directory in which the model or the flow was saved.
        model: model that is plugged, or extended by `install`.
        whole: True if the whole model was saved, False if the flow alone.
    """
    if (file := directory / CARD).exists():
        return
    origin = str(getattr(getattr(model, "config", None), "_name_or_path", None) or "")
    on_hub = 0 < origin.count("/") < 2 and not Path(origin).exists()
    head = ["library_name: transformers", "tags:", "- floater", "- position-encoding"]
    head += [f"base_model: {origin}"] if on_hub else []
    front = "\n".join(["---", *head, "---"])
    state, settings = plugged(model), extension_settings(model) if whole else None
    parts, tables = [], []
    if state is not None:
        parts.append(_CLOCK if "clock" in state.options else _PLUGGED)
        baked = {"baked": model.floater.length} if whole else {}
        tables.append(_table("Plugged", state.options | baked))
    if settings is not None:
        parts.append(_EXTENDED.format(**settings))
        tables.append(_table("Extended", settings))
    text = (_WHOLE if whole else _FLOW).format(
        kind=type(model).__name__,
        what=", and ".join(parts),
        base=json.dumps(origin if on_hub else "path/to/the/model"),
    )
    file.write_text("\n".join([front, "", text, *tables]), encoding="utf-8")


def _table(what: str, options: Mapping[str, Any]) -> str:
    rows = "\n".join(f"| `{name}` | `{json.dumps(value)}` |" for name, value in options.items())
    return f"{what} with:\n\n| option | value |\n|---|---|\n{rows}\n"
