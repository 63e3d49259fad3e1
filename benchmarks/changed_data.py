"""Runs whose data change between two starts: see reliability.py."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from commands import Command

Change = Callable[[list[str], random.Random], list[str]]
CHANGES: dict[str, Change] = {
    "halved": lambda lines, chance: lines[: len(lines) // 2],
    "doubled": lambda lines, chance: lines * 2,
    "reordered": lambda lines, chance: lines[::-1],
    "misaligned": lambda lines, chance: lines[1:] + lines[:1],
    "replaced": lambda lines, chance: [line.translate(_OTHER) for line in lines],
    "one line changed": lambda lines, chance: _one(lines, chance),
}
"""Changes of the lines of a file, of which each makes other examples."""
_OTHER = str.maketrans("aeiou", "eioua")
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}


def _one(lines: list[str], chance: random.Random) -> list[str]:
    at = chance.randrange(len(lines))
    return [*lines[:at], lines[at].translate(_OTHER), *lines[at + 1 :]]


class DataRun:
    """A run of a task with data in files, stopped at a checkpoint, to be copied for each case.

    Args:
        folder: an empty directory.
        task: name of the task.
    """

    def __init__(self, folder: Path, task: str) -> None:
        self.folder, self.task, self.data = folder, task, folder / "data"
        self.data.mkdir(parents=True)
        files = {
            "translation": self._texts,
            "language_modeling": self._texts,
            "events": self._events,
            "documents": self._documents,
            "image_classification": self._images,
        }[task]()
        steps = {"max_steps": 12, "save_steps": 4, "eval_steps": 4, "warmup_steps": 2, "average_last": 0}
        position = "sinusoidal_grid" if task == "image_classification" else "sinusoidal"
        tree = {
            "task": task,
            "run": str(folder / "whole"),
            "data": files,
            "model": {"position": position, "changes": SIZES},
            "training": steps,
        }
        self.config = folder / "run.yaml"
        self.config.write_text(yaml.safe_dump(tree))
        whole = self.train("whole").finish()
        if whole.code:
            raise RuntimeError(f"{task}: {whole.text}")
        self._stop()
        shutil.copytree(self.data, folder / "pristine")

    def train(self, name: str, *options: str) -> Command:
        return Command(["train", str(self.config), f"run={self.folder / name}", *options])

    def _stop(self) -> None:
        """Kill a run once it has a checkpoint."""
        command = self.train("template")
        while not (self.folder / "template" / "checkpoint-4").is_dir():
            if command.wait(0):
                raise RuntimeError(f"{self.task}: {command.text}")
            time.sleep(0.001)
        command.send(signal.SIGKILL)
        command.finish()

    def begin(self, name: str) -> None:
        """Copy the stopped run, and restore the data."""
        shutil.rmtree(self.data)
        shutil.copytree(self.folder / "pristine", self.data)
        shutil.copytree(self.folder / "template", self.folder / name)

    def change(self, chance: random.Random) -> tuple[str, bool]:
        """Change a file of the data; return what was changed, and whether the examples are others."""
        file = chance.choice(sorted(path for path in self.data.rglob("*") if path.is_file()))
        name = file.relative_to(self.data)
        if chance.random() < 0.15:
            os.utime(file, (0, 0))
            return f"{name} touched", False
        if chance.random() < 0.15 and self.task in ("documents", "image_classification"):
            file.unlink()
            return f"{name} removed", True
        if file.suffix == ".png":
            others = [path for path in self.data.rglob("*.png") if path.read_bytes() != file.read_bytes()]
            shutil.copyfile(chance.choice(others), file)
            return f"{name} replaced", True
        head, *lines = file.read_text().splitlines(keepends=True)
        if file.suffix != ".csv":
            head, lines = "", [head, *lines]
        names = ["halved", "replaced"] if file.suffix == ".csv" else sorted(CHANGES)
        before, how = lines, chance.choice(names)
        if file.suffix == ".csv" and how == "replaced":
            lines = [line.replace(",1", ",2") for line in lines]
        else:
            lines = CHANGES[how](lines, chance)
        file.write_text(head + "".join(lines))
        return f"{name} {how}", lines != before

    def _texts(self) -> dict[str, Any]:
        names = ["the", "a", "one", "some", "red", "blue", "old", "new"]
        for split, count in (("train", 160), ("valid", 8)):
            sides = {"en": "house is there", "de": "haus steht da"}
            if self.task == "language_modeling":
                del sides["de"]  # it reads one side
            for language, rest in sides.items():
                lines = (f"{names[n % 8]} {names[n // 8 % 8]} {rest} {n}\n" for n in range(count))
                (self.data / f"{split}.{language}").write_text("".join(lines))
        if self.task == "language_modeling":
            return {"train": f"{self.data}/train.en", "valid": f"{self.data}/valid.en", "block": 32}
        paths = {
            f"{split}_{side}": f"{self.data}/{split}.{language}"
            for split in ("train", "valid")
            for side, language in (("source", "en"), ("target", "de"))
        }
        return {**paths, "vocabulary_size": 280}

    def _events(self) -> dict[str, Any]:
        for split, count in (("train", 60), ("valid", 8)):
            rows = (f"{n},{time + n % 3},{(time + n) % 3}\n" for n in range(count) for time in range(6))
            (self.data / f"{split}.csv").write_text("id,time,type\n" + "".join(rows))
        return {"train": f"{self.data}/train.csv", "valid": f"{self.data}/valid.csv"}

    def _documents(self) -> dict[str, Any]:
        words = {"good": "fine warm bright", "bad": "cold dull dark"}
        for label, text in words.items():
            (self.data / "texts" / label).mkdir(parents=True)
            for n in range(30):
                lines = (f"It was {word} {n}. And so on.\n" for word in text.split())
                (self.data / "texts" / label / f"{n}.txt").write_text("".join(lines))
        return {"train": f"{self.data}/texts", "min_count": 1}

    def _images(self) -> dict[str, Any]:
        from PIL import Image

        for part, count in (("train", 16), ("valid", 4), ("test", 2)):
            for label in ("dark", "light"):
                folder = self.data / part / label
                folder.mkdir(parents=True)
                for n in range(count):
                    Image.new("L", (8, 8), n if label == "dark" else 255 - n).save(folder / f"{n}.png")
        return {"source": str(self.data), "image_size": 8}
