"""Files of models: weights and configurations, in a directory or on the Hub."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.core_model_loading import WeightRenaming
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from floater.errors import reason
from floater.guard import original
from floater.pretrained.families import PlugError

_HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


def read_weights(origin: str, arguments: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    """Return the weights of a model whose names begin with a prefix, under their names without the prefix.

    Args:
        origin: directory or repository that the model was loaded from.
        arguments: arguments of `from_pretrained`, of which `key_mapping` renames weights.
        prefix: beginning of the names.

    Raises:
        PlugError: if there is no file of weights, it cannot be read, or a tensor is not finite.
    """
    mapping = (arguments.get("key_mapping") or {}).items()
    renamings = [WeightRenaming(source_patterns=old, target_patterns=new) for old, new in mapping]

    def rename(name: str) -> str:
        for renaming in renamings:
            name, _ = renaming.rename_source_key(name)
        return name

    if (weights := arguments.get("state_dict")) is not None:
        named = {rename(name): tensor for name, tensor in weights.items()}
        return {name.removeprefix(prefix): t for name, t in named.items() if name.startswith(prefix)}

    def variant(name: str) -> str:
        stem, ending = name.rsplit(".", 1)
        return f"{stem}.{arguments['variant']}.{ending}" if arguments.get("variant") else name

    if (whole := _file(origin, variant(SAFE_WEIGHTS_NAME), arguments)) is not None:
        return read_tensors([whole], prefix, rename)
    if (index := _file(origin, variant(SAFE_WEIGHTS_INDEX_NAME), arguments)) is None:
        raise PlugError(f"{origin} holds no {SAFE_WEIGHTS_NAME}; a flow is read from safetensors alone")
    shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    names = sorted({shard for name, shard in shards.items() if rename(name).startswith(prefix)})
    files = [_file(origin, name, arguments) for name in names]
    return read_tensors([file for file in files if file is not None], prefix, rename)


def read_tensors(files: Sequence[Path], prefix: str, rename: Callable[[str], str] = str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, under their names without the prefix.

    Args:
        files: safetensors files.
        prefix: beginning of the names.
        rename: function from the names in the files to others.

    Raises:
        PlugError: if a file cannot be read, or a tensor is not finite.
    """
    tensors = {}
    for file in files:
        try:
            with safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118 (a safetensors file is not iterable)
                    if (renamed := rename(name)).startswith(prefix):
                        tensor = tensors[renamed.removeprefix(prefix)] = opened.get_tensor(name)
                        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                            raise PlugError(f"{file} holds values of '{name}' that are not finite")
        except (OSError, SafetensorError) as error:
            raise PlugError(f"{file} cannot be read ({reason(error)})") from error
    return tensors


def read_config(origin: str, arguments: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return the configuration beside weights; an empty one if there is none on this machine.

    Args:
        origin: directory or repository of the weights.
        arguments: arguments of `from_pretrained`.
    """
    try:
        file = _file(origin, CONFIG_NAME, {**arguments, "local_files_only": True})
        return {} if file is None else original(dict(json.loads(file.read_text(encoding="utf-8"))))
    except (OSError, ValueError):
        return {}


def read_object(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        PlugError: if the file cannot be read or holds something else.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PlugError(f"{file} cannot be read ({reason(error)})") from error
    if not isinstance(value, dict):
        raise PlugError(f"{file} holds no JSON object")
    return value


def _file(origin: str, name: str, arguments: Mapping[str, Any]) -> Path | None:
    """Return a file of the directory or repository that a model was loaded from; None if it is missing."""
    hub = {key: arguments[key] for key in _HUB if arguments.get(key) is not None}
    file = cached_file(origin, name, _raise_exceptions_for_missing_entries=False, **hub)
    return None if file is None else Path(file)
