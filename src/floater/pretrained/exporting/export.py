"""Export of a model to readers that do not import this library."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from floater.pretrained.exporting.code import write_code
from floater.pretrained.exporting.errors import ExportError
from floater.pretrained.exporting.plain import plain_model
from floater.pretrained.exporting.readers import READERS, check_rotation, fit_config
from floater.pretrained.host import check_not_code


@dataclass(frozen=True)
class Export:
    """Summary of an export.

    Args:
        kind: name of the class that reads the directory.
        reader: program that the directory is written for.
        code: True if the directory contains code of the class.
        notes: sentences about what the reader computes otherwise.

    Example:
        >>> print(Export("BertModel", "transformers", False))
        a BertModel for transformers
    """

    kind: str
    reader: str
    code: bool
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        code = " with its code; load it with trust_remote_code=True" if self.code else ""
        return "; ".join([f"a {self.kind} for {self.reader}{code}", *self.notes])


def export(
    model: nn.Module, directory: str | Path, *, reader: str = "transformers", code: bool = False
) -> Export:
    """Write a model for programs that do not import this library.

    The directory holds a model of Transformers' own class (see `plain_model`) with the keys that the reader
    understands, or, with `code=True`, the class of a plugged model or of "self_extend" and "log_n" in one
    file of Python. Save the tokenizer into the same directory, with its `model_max_length`.

    Args:
        model: model of Transformers, extended, or plugged and baked or with clocks.
        directory: new or empty directory.
        reader: "transformers", "vllm", "sglang" or "llama.cpp" (its converter).
        code: True to write the code of the class, which Transformers alone reads.

    Returns:
        A summary.

    Raises:
        ExportError: if the directory is not empty, the reader would compute another model, there is no class
            or code for the model, or the model is exported code and the reader another program.

    Example:
        >>> import tempfile
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from floater.pretrained import extend
        >>> sizes = {"hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1, "vocab_size": 8}
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=8, max_position_embeddings=64))
        >>> summary = extend(model, 128, "linear")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print(export(model, folder, reader="vllm"))
        ...     json.loads((Path(folder) / "config.json").read_text())["max_position_embeddings"]
        a LlamaForCausalLM for vllm
        64
    """
    if not isinstance(directory, str | os.PathLike) or directory == "":
        raise ExportError(f"directory is {directory!r}; it must be the path of a new or empty directory")
    directory = Path(directory)
    if reader not in READERS:
        raise ExportError(f"reader is {reader!r}; it must be one of {', '.join(map(repr, READERS))}")
    if code or reader != "transformers":
        check_not_code(model, ExportError, "written as code" if code else f"written for {reader}")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ExportError(f"{directory} exists already; choose a new directory")
    if code:
        if reader != "transformers":
            raise ExportError(f"{reader} does not run the code of a directory; reader must be 'transformers'")
        kind, config = write_code(model, directory)
    else:
        plain: Any = plain_model(model)
        kind, config = type(plain).__name__, plain.config
        check_rotation(plain, config, reader)
        fit_config(config.to_dict(), config, reader)  # refuses before anything is written
        plain.save_pretrained(directory)
    file = directory / "config.json"
    fields = json.loads(file.read_text(encoding="utf-8"))
    notes = fit_config(fields, config, reader)
    file.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return Export(kind, reader, code, tuple(notes))
