"""Model cards: the contents of a directory with a flow, and instructions to load it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from floater.pretrained.plug import need

CARD = "README.md"

_WHOLE = """\
A `{kind}` with learned continuous positions (FLOATER, Liu et al. 2020) in its attention. The flow is part of
its weights. Import `floater` before the model is loaded; Transformers alone refuses it.

```python
import floater
from transformers import {kind}

model = {kind}.from_pretrained("path/to/this/folder")  # or the Auto class, or a pipeline
```
"""

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
    """Write README.md beside a plugged model or its flow, unless it exists.

    Args:
        directory: directory in which the model or the flow was saved.
        model: plugged model.
        whole: True if the whole model was saved, False if the flow alone.
    """
    if (file := directory / CARD).exists():
        return
    options = {**need(model).options, "baked": model.floater.length} if whole else need(model).options
    origin = str(getattr(getattr(model, "config", None), "_name_or_path", None) or "")
    known = 0 < origin.count("/") < 2 and not Path(origin).exists()
    head = ["library_name: transformers", "tags:", "- floater", "- position-encoding"]
    head += [f"base_model: {origin}"] if known else []
    text = (_WHOLE if whole else _FLOW).format(
        kind=type(model).__name__, base=json.dumps(origin if known else "path/to/the/model")
    )
    rows = "\n".join(f"| `{name}` | `{json.dumps(value)}` |" for name, value in options.items())
    table = f"Plugged with:\n\n| option | value |\n|---|---|\n{rows}\n"
    front = "\n".join(["---", *head, "---"])
    file.write_text(f"{front}\n\n{text}\n{table}", encoding="utf-8")
