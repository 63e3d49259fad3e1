"""A run that takes seconds: short questions, a small Transformer, a few steps."""

from pathlib import Path
from typing import Any

from floater.lab.settings import load
from floater.lab.tasks.corpora.problems import PROBLEMS
from floater.lab.tasks.generated import GeneratedSettings
from helpers import write_run_config

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}


def write_config(folder: Path, name: str = "run", **parts: Any) -> Path:
    """Write a configuration; `parts` are changed keys by section, as in training={"seed": 2}."""
    config: dict[str, Any] = {
        "task": "generated",
        "data": {
            "problem": "reverse",
            "lengths": [3, 5],
            "train": 400,
            "valid": 20,
            "test": 15,
            "symbols": 9,
        },
        "model": {"position": "sinusoidal", "max_length": 96, "changes": {**SIZES, "dropout": 0.1}},
        "training": {
            "learning_rate": 5e-3,
            "warmup_steps": 3,
            "max_tokens": 256,
            "max_steps": 12,
            "save_steps": 4,
            "logging_steps": 1,
            "save_total_limit": 2,
            "average_last": 2,
        },
    }
    problem = PROBLEMS.get(parts.get("data", {}).get("problem", "reverse"))
    if problem and "symbols" not in problem.options:
        del config["data"]["symbols"]
    return write_run_config(folder / f"{name}.yaml", config, **parts)


def settings(folder: Path, name: str = "run", **parts: Any) -> GeneratedSettings:
    return load(GeneratedSettings, write_config(folder, name, **parts))
