"""Progress of a run, from its log, and the time that a study takes."""

from __future__ import annotations

import json
import logging
import math
import time
from pathlib import Path
from typing import Any

from floater.lab.settings import SettingsError, read
from floater.lab.training.progress import duration
from floater.lab.training.run import LOG, RESULT, SETTINGS

_TRAINING = 0.95  # the rest is for scoring
logger = logging.getLogger(__name__)


class TimeLeft:
    """Log the time that is left of a study, as soon as its trials advance and at intervals.

    Args:
        total: number of trials.
        done: trials that are done when it starts, with the fractions of those that have begun.
        every: seconds between two lines; infinite for one line in all, beside a bar on a terminal.

    Example:
        >>> TimeLeft(3, done=1.5, every=60).log(1.5)  # nothing can be estimated yet
    """

    def __init__(self, total: int, done: float, every: float) -> None:
        self.total, self.there, self.every = total, done, every
        self.began, self.last = time.monotonic(), -math.inf

    def log(self, done: float) -> None:
        """Log a line if one is due.

        Args:
            done: trials that are done now, with the fractions of those that have begun.
        """
        now = time.monotonic()
        if not self.there < done < self.total or now - self.last < self.every:
            return
        left = (now - self.began) / (done - self.there) * (self.total - done)
        self.last = now
        logger.info("%.1f of %s trials done, about %s left", done, self.total, duration(left))


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
