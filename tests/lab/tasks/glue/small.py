"""Files of GLUE whose label is a word of the sentence, and a run of seconds."""

import random
from pathlib import Path
from typing import Any

from floater.lab.settings import load
from floater.lab.tasks.glue import GlueSettings
from helpers import write_run_config


def write_cola(folder: Path) -> None:
    """Acceptable is what has the word good in it."""
    target = folder / "CoLA"
    target.mkdir()
    draw = random.Random(0)
    for name, count in (("train", 160), ("dev", 40)):
        lines = []
        for i in range(count):
            label = draw.random() < 0.5
            words = [
                draw.choice(["the", "a", "film", "city", "is", "was"]) for _ in range(draw.randrange(2, 6))
            ]
            words.insert(draw.randrange(len(words)), "good" if label else "bad")
            lines.append(f"src{i}\t{int(label)}\t{'' if label else '*'}\t{' '.join(words)}\n")
        (target / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    (target / "test.tsv").write_text("index\tsentence\n7\tit was good\n3\tit was bad\n", encoding="utf-8")


def write_config(folder: Path, checkpoint: Path, name: str = "run", **parts: Any) -> Path:
    """Write a configuration; `parts` are changed keys by section, as in training={"seed": 2}."""
    config = {
        "task": "glue",
        "data": {"task": "CoLA", "folder": str(folder), "max_length": 32},
        "model": {"path": str(checkpoint)},
        "plug": {},
        "training": {
            "learning_rate": 5e-3,
            "per_device_train_batch_size": 16,
            "max_steps": 8,
            "save_steps": 4,
            "logging_steps": 2,
            "save_total_limit": 2,
        },
    }
    return write_run_config(folder / f"{name}.yaml", config, **parts)


def settings(folder: Path, checkpoint: Path, name: str = "run", **parts: Any) -> GlueSettings:
    return load(GlueSettings, write_config(folder, checkpoint, name, **parts))
