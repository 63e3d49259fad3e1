"""A run that takes seconds: a small text, a small Transformer, a few steps."""

import random
from pathlib import Path
from typing import Any

from floater.lab.settings import load
from floater.lab.tasks.language_modeling import LanguageModelingSettings
from helpers import write_run_config

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
WORDS = ["the", "river", "runs", "to", "a", "far", "grey", "sea", "and", "no", "bird", "sings", "there"]


def text(lines: int, seed: int) -> str:
    """Lines of words that follow each other in a circle, with gaps; some lines are blank."""
    draw, out = random.Random(seed), []
    for _ in range(lines):
        start, count = draw.randrange(len(WORDS)), draw.randrange(3, 9)
        out.append(" ".join(WORDS[(start + i) % len(WORDS)] for i in range(count)))
        out += [""] * (draw.random() < 0.3)
    return "\n".join(out) + "\n"


def write_texts(folder: Path) -> None:
    (folder / "train.txt").write_text(text(150, 0), encoding="utf-8")
    (folder / "valid.txt").write_text(text(20, 1), encoding="utf-8")


def write_config(folder: Path, name: str = "run", **parts: Any) -> Path:
    """Write a configuration; `parts` are changed keys by section, as in training={"seed": 2}."""
    config: dict[str, Any] = {
        "task": "language_modeling",
        "objective": "causal",
        "data": {
            "train": str(folder / "train.txt"),
            "valid": str(folder / "valid.txt"),
            "block": 24,
            "vocabulary_size": 290,
        },
        "model": {"preset": "tiny", "position": "sinusoidal", "max_length": 32, "changes": SIZES},
        "training": {
            "learning_rate": 1e-2,
            "warmup_steps": 3,
            "max_tokens": 192,
            "max_steps": 12,
            "eval_steps": 6,
            "save_steps": 4,
            "logging_steps": 1,
            "save_total_limit": 3,
            "average_last": 2,
        },
    }
    if "vocabulary" in parts.get("data", {}):
        del config["data"]["vocabulary_size"]
    return write_run_config(folder / f"{name}.yaml", config, **parts)


def settings(folder: Path, name: str = "run", **parts: Any) -> LanguageModelingSettings:
    return load(LanguageModelingSettings, write_config(folder, name, **parts))
