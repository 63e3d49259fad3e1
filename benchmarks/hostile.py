"""Damaged and malicious files: see reliability.py."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml

from floater.lab.training.files import seal

Case = tuple[str, list[str]]
"""The description of a file, and the arguments of the command that reads it."""


def corrupted(file: Path, chance: random.Random) -> str:
    """Damage a file in a random way, and return its path."""
    content = bytearray(file.read_bytes())
    how = chance.choice(["removed", "cut", "a bit flipped", "a block of zeros", "bytes added", "a directory"])
    at = chance.randrange(max(1, len(content)))
    if how in ("removed", "a directory"):
        file.unlink()
        if how == "a directory":
            file.mkdir()
        return how
    if how == "cut":
        content = content[:at]
    elif how == "a bit flipped" and content:
        content[at] ^= 1 << chance.randrange(8)
    elif how == "a block of zeros":
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    else:
        content += chance.randbytes(64)
    file.write_bytes(content)
    return how


class Evil:
    """An object whose unpickling would create a directory."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def hostile_cases(folder: Path, config: Path, marker: Path, chance: random.Random) -> Iterator[Case]:
    """Yield malicious files, each with the command that reads it, endlessly.

    Args:
        folder: folder with a finished run, "whole", and an interrupted one, "template".
        config: configuration of these runs.
        marker: path that a file would create if it were executed.
        chance: random choice of the change.
    """
    bomb = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    texts = {
        "aliases of aliases": bomb,
        "an alias of itself": "a: &a [*a]",
        "deep": "a: " + "[" * 10**5,
        "a long number": "training: {seed: " + "9" * 10**5 + "}",
        "hexadecimal": "training: {seed: 0x" + "f" * 10**5 + "}",
        "code": f"run: !!python/object/apply:os.mkdir ['{marker}']",
        "not UTF-8": "run: \udcff",
        "large": "#" * 10**7,
        "a rate that is none": "run: x\ntask: generated\ntraining: {learning_rate: .nan}",
        "a rate without end": "run: x\ntask: generated\ntraining: {learning_rate: .inf}",
        "another task": "run: x\ntask: ../../etc/passwd",
    }
    for name, text in texts.items():
        path = folder / "hostile.yaml"
        path.write_bytes(text.encode(errors="surrogateescape"))
        yield name, ["train", str(path)]
    yield "a device", ["train", "/dev/zero"]
    base = yaml.safe_load(config.read_text())
    archives: dict[str, Callable[[Path], object]] = {
        "zip of zeros": lambda path: _zip(path, bytes(2**27)),
        "cut zip": lambda path: (_zip(path, b"a b"), os.truncate(path, path.stat().st_size // 2)),
        "no zip": lambda path: path.write_bytes(chance.randbytes(999)),
    }
    for name, make in archives.items():
        make(folder / "hostile.zip")
        tree = {
            "task": "documents",
            "run": str(folder / "doc"),
            "data": {"train": str(folder / "hostile.zip")},
        }
        (folder / "hostile.yaml").write_text(yaml.safe_dump(tree))
        yield name, ["train", str(folder / "hostile.yaml")]
    tables: dict[str, bytes] = {
        "a time that is none": b"id,time,type\n1,nan,a\n1,2,b\n",
        "a time without end": b"id,time,type\n1,0,a\n1,inf,b\n",
        "a time of 400 digits": b"id,time,type\n1,0,a\n1," + b"9" * 400 + b",b\n",
        "time that falls": b"id,time,type\n1,5,a\n1,2,b\n",
        "no columns": b"\x00" * 99,
    }
    for name, table in tables.items():
        (folder / "hostile.csv").write_bytes(table)
        tree = {"task": "events", "run": str(folder / "ev"), "data": {"train": str(folder / "hostile.csv")}}
        (folder / "hostile.yaml").write_text(yaml.safe_dump(tree))
        yield name, ["train", str(folder / "hostile.yaml")]
    tree = {
        "run": str(folder / "tr"),
        "data": {"train_source": str(folder / "h.gz"), "train_target": str(folder / "h.gz")},
    }
    for name, content in {
        "gzip of zeros": gzip.compress(bytes(2**28)),
        "cut gzip": gzip.compress(b"a")[:-5],
    }.items():
        (folder / "h.gz").write_bytes(content)
        (folder / "hostile.yaml").write_text(yaml.safe_dump(tree))
        yield name, ["train", str(folder / "hostile.yaml")]
    for part in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        shutil.rmtree(folder / "hostile", ignore_errors=True)
        shutil.copytree(folder / "template", folder / "hostile")
        last = max(
            (folder / "hostile").glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2])
        )
        torch.save(Evil(marker), last / part)
        (last / "manifest.json").unlink()
        seal(last)
        for path in (folder / "hostile").glob("interrupted-*"):
            shutil.rmtree(path)
        yield f"code in {part}", ["train", str(config), f"run={folder / 'hostile'}"]
    while True:  # a finished run, whose files may be from others
        shutil.rmtree(folder / "model", ignore_errors=True)
        shutil.copytree(folder / "whole" / "model", folder / "model")
        file = chance.choice(sorted((folder / "model").iterdir()))
        how = corrupted(file, chance) if file.suffix != ".json" else _mutated(file, chance)
        yield f"model/{file.name}: {how}", ["evaluate", str(folder / "model")]
        tree = json.loads(json.dumps(base))
        section = chance.choice([tree, tree["data"], tree["model"], tree["training"]])
        key, value = (
            chance.choice(sorted(section)),
            chance.choice([-1, 0, 10**30, "x", None, [], {}, 1e308, True]),
        )
        section[key] = value
        tree["run"] = str(folder / "mutated") if isinstance(tree.get("run"), str) else tree.get("run")
        tree.setdefault("training", {})
        (folder / "hostile.yaml").write_text(yaml.safe_dump(tree))
        yield f"{key}: {value!r}", ["train", str(folder / "hostile.yaml"), "training.max_steps=2"]


def _zip(path: Path, content: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for label in ("good", "bad"):
            archive.writestr(f"{label}/1.txt", content)


def _mutated(file: Path, chance: random.Random) -> str:
    """Replace a value of a JSON file."""
    tree = json.loads(file.read_text())
    at = tree
    while isinstance(at, dict) and at:
        key = chance.choice(sorted(at))
        if not isinstance(at[key], dict) or not at[key]:
            at[key] = value = chance.choice([-1, 0, 10**30, "x", None, [], {}, 1e308, True])
            file.write_text(json.dumps(tree))
            return f"{key} = {value!r}"
        at = at[key]
    file.write_text("[]")
    return "[]"
