"""Progress of a run, from its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from floater.lab.settings import SettingsError, read
from floater.lab.training.run import LOG, RESULT, SETTINGS

_TRAINING = 0.95  # the rest is for scoring


def entries(run: Path) -> list[dict[str, Any]]:
    """Return the log of a run; empty before its first entry."""
    try:
        log: list[dict[str, Any]] = json.loads((run / LOG).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return []
    return log


def fraction(run: Path) -> float:
    """Return the finished fraction of a run, by its steps or epochs; early stopping may end it sooner."""
    if (run / RESULT).is_file():
        return _TRAINING
    log = entries(run)
    if not log:
        return 0.0
    try:
        training = read(run / SETTINGS).get("training", {})
    except SettingsError:
        return 0.0
    steps, epochs = training.get("max_steps"), training.get("num_train_epochs", 1)
    done: float = log[-1]["step"] / steps if steps else log[-1]["epoch"] / epochs
    return min(1.0, done) * _TRAINING
