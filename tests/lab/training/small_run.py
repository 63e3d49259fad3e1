"""A run of twelve steps that takes a second: a small Transformer learns to reverse symbols."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from floater.lab.settings import make
from floater.lab.tasks import task
from floater.lab.tasks.generated import GeneratedSettings
from helpers import At

TASK = task("generated")


def settings(run: Path, model: dict[str, Any] | None = None, **training: Any) -> GeneratedSettings:
    """Return the settings of a run: six steps in an epoch, a checkpoint every fourth step."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    defaults = {
        "learning_rate": 5e-3,
        "warmup_steps": 3,
        "max_tokens": 256,
        "max_steps": 12,
        "logging_steps": 2,
    }
    kept = {"save_total_limit": 2, "average_last": 2}
    tree = {
        "run": str(run),
        "task": "generated",
        "data": {"problem": "reverse", "lengths": [3, 5], "train": 130, "valid": 8, "test": 4, "symbols": 9},
        "model": {"position": "sinusoidal", "max_length": 96, "changes": sizes | {"dropout": 0.1}}
        | (model or {}),
        "training": defaults
        | kept
        | (training if "save_strategy" in training else {"save_steps": 4} | training),
    }
    return make(GeneratedSettings, tree, "settings")


class AtEvaluation(At):
    """Do something after the validation of a step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        return

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_step_end(args, state, control)


def names(run: Path) -> list[str]:
    """Return the names of what a run has of checkpoints, in order."""
    return sorted(path.name for path in run.iterdir() if path.name.rpartition("-")[2].isdigit())
