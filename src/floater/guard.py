"""The `config.json` of a model that needs this library, which every other reader refuses.

A flow or an extension is part of a model, but Transformers builds a model by the class in its configuration
and ignores what that class does not know. `fusion_config` has an entry that Transformers refuses from version
5.20 on; older versions and other programs do not read it. So three fields, which readers look up in a table,
are replaced in the file by names that are in none:

- `architectures`, by which vLLM, SGLang and llama.cpp's converter choose their code;
- `model_type`, by which the Auto classes of all versions, and programs that read the file alone, do;
- `dtype`, which every class of Transformers looks up in torch, whatever the other two are.

`import floater` makes Transformers read and write the file in this way. In memory nothing is replaced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

PREFIX = "floater:"
"""Beginning of the entries of `fusion_config` that are ours."""

_ORIGINAL = "floater_original"
"""Field of the file with the names and values of the replaced fields; a class of Transformers would take a
mapping with its `model_type` for its configuration."""


def guarded(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration as they are written, with the guard if the model needs it.

    Example:
        >>> fields = {"model_type": "bert", "fusion_config": {"floater: import floater": True}}
        >>> guarded(fields)["model_type"]
        'floater: import floater to load this bert'
        >>> original(guarded(fields)) == fields
        True
    """
    entries = [entry for entry in fields.get("fusion_config") or () if entry.startswith(PREFIX)]
    if not entries or _ORIGINAL in fields:
        return dict(fields)
    kind, names = fields.get("model_type"), fields.get("architectures") or ()
    replaced = {
        "architectures": [f"Floater{name}" for name in names],
        "dtype": entries[0],
        "model_type": f"{PREFIX} import floater to load this {kind}",
    }
    kept = [[name, fields[name]] for name in replaced if name in fields]
    return {**fields, **replaced, _ORIGINAL: kept}


def original(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration as they are in memory, without the guard.

    Raises:
        ValueError: if the field with the replaced ones is not what `guarded` writes.
    """
    if (kept := fields.get(_ORIGINAL)) is None:
        return dict(fields)
    if not isinstance(kept, list) or not all(isinstance(each, list) and len(each) == 2 for each in kept):
        raise ValueError(
            f"'{_ORIGINAL}' in the configuration is {kept!r}; it must be pairs of a name and a value"
        )
    replaced = {"architectures", "dtype", "model_type", _ORIGINAL}
    return {name: value for name, value in fields.items() if name not in replaced} | dict(kept)


def read_config(read: Callable[..., dict[str, Any]], kind: Any, file: Any) -> dict[str, Any]:
    """Read the file of a configuration as Transformers' function does, without the guard."""
    fields = read(kind, file)
    return original(fields) if isinstance(fields, dict) else fields


def write_config(
    write: Callable[..., None], config: Any, json_file_path: str | os.PathLike[str], *args: Any, **kwargs: Any
) -> None:
    """Write the file of a configuration as Transformers' function does, with the guard if it needs one."""
    write(config, json_file_path, *args, **kwargs)
    if any(entry.startswith(PREFIX) for entry in getattr(config, "fusion_config", None) or ()):
        with open(json_file_path, encoding="utf-8") as file:
            fields = json.load(file)
        with open(json_file_path, "w", encoding="utf-8") as file:
            file.write(json.dumps(guarded(fields), indent=2, sort_keys=True) + "\n")
