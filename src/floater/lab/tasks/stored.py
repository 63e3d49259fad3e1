"""Examples in files that the processes of a run, and the trials of a study, map into their memory."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState

from floater import __version__
from floater.lab.text.ragged import Groups, Ragged, Records, TextLines
from floater.lab.training.files import UNFINISHED, damage, discard, seal, sync, write_json
from floater.lab.training.lock import file_lock
from floater.lab.training.run_data import VOCABULARY, RunData

logger = logging.getLogger(__name__)
LARGE = 2**24
"""Bytes of data files from which the examples are stored; those of smaller ones stay in memory."""
_TREE = "tree.json"
Store = Callable[..., Any]
"""A function of a name, a function that makes a value, and the processor that the value depends on."""


def unstored(what: str, make: Callable[[], Any], *processors: Any) -> Any:
    """Return a newly computed value."""
    return make()


def store_of(task: Any, settings: Any, data: RunData, folder: Path) -> Store:
    """Return the function by which a run gets examples and a vocabulary: from files, if the data are large.

    Args:
        task: task of the run.
        settings: settings of the run.
        data: record of its data.
        folder: directory of the files.
    """
    if not (task.stored and data.size > LARGE):
        return unstored

    def in_files(what: str, make: Callable[[], Any], *processors: Any) -> Any:
        key = [what, task.name, __version__, data.digest, asdict(settings.data)]
        if what == VOCABULARY:
            key.append(task.vocabulary_key(settings))
        key += [processor.backend_tokenizer.to_str() for processor in processors]
        load = task.load_processor if what == VOCABULARY else None
        return stored(folder, key, task.stored, make, load)

    return in_files


def stored(
    folder: Path,
    key: Any,
    kinds: tuple[type, ...],
    make: Callable[[], Any],
    load: Callable[[Path], Any] | None = None,
) -> Any:
    """Return a value whose arrays are memory maps of files, which are written first if there are none.

    Args:
        folder: directory of all stored values.
        key: JSON value that determines the value.
        kinds: dataclasses of the value besides those of `floater.lab.text.ragged`.
        make: function that returns the value: a dataclass of these kinds, a tuple or a list of texts, of
            groups of texts, of numbers or of arrays. Fields of a dataclass that its constructor does not take
            are not stored.
        load: function that reads a value that has `save_pretrained`, such as a vocabulary, from a directory.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> list(stored(folder, "key", (), lambda: ["a text", "another"]))
        ['a text', 'another']
        >>> stored(folder, "key", (), lambda: 1 / 0)[1]
        'another'
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    path = folder / digest[:16]
    load = load or (lambda path: _read(path, kinds))
    if not PartialState().is_main_process:  # it has stored the value and checked it
        return load(path)
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / f"{path.name}.lock", str(path), patience=None):
        why = damage(path) if path.is_dir() else None
        if why is not None:
            logger.warning("%s is damaged (%s) and is made again", path, why)
            discard(path)
        if not path.is_dir():
            hidden = folder / f"{path.name}{UNFINISHED}"
            discard(hidden)
            hidden.mkdir()
            if hasattr(value := make(), "save_pretrained"):
                value.save_pretrained(hidden)
            else:
                write_json(hidden / _TREE, _written(value, hidden, ""))
            seal(hidden)
            os.replace(hidden, path)
            sync(folder)
    return load(path)


def _written(value: Any, folder: Path, name: str) -> Any:
    """Write the arrays of a value, and return its tree in JSON."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, np.ndarray):
        np.save(folder / f"{name}.npy", value, allow_pickle=False)
        return f"{name}.npy"
    if isinstance(value, list):
        value = TextLines.of(value) if isinstance(value[0], str) else Groups.of(TextLines, value)
    if is_dataclass(value):
        kind = type(value).__name__
        parts = [(x.name, getattr(value, x.name)) for x in fields(value) if x.init]
    else:
        kind, parts = tuple.__name__, [(str(i), part) for i, part in enumerate(value)]
    return [kind, *(_written(part, folder, f"{name}.{each}".lstrip(".")) for each, part in parts)]


def _read(path: Path, kinds: tuple[type, ...]) -> Any:
    classes: dict[str, Any] = {kind.__name__: kind for kind in (Ragged, TextLines, Groups, Records, *kinds)}
    classes[tuple.__name__] = lambda *parts: parts

    def value(tree: Any) -> Any:
        if isinstance(tree, dict):
            return tree["text"]
        if isinstance(tree, str):
            # copy on write: PyTorch warns of arrays that cannot be written
            return np.load(path / Path(tree).name, mmap_mode="c", allow_pickle=False).view(np.ndarray)
        return classes[tree[0]](*map(value, tree[1:])) if isinstance(tree, list) else tree

    return value(json.loads((path / _TREE).read_text(encoding="utf-8")))
