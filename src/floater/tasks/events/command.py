"""Events on the command line."""

from __future__ import annotations

from floater.tasks.events.score import evaluate as scored
from floater.tasks.events.settings import EventsSettings as Settings
from floater.tasks.events.train import check, train

__all__ = ["OPTIONS", "Settings", "check", "evaluate", "train"]

OPTIONS = {"part": False, "window": False}


def evaluate(run: str, source: str, part: str | None = None, window: int | None = None) -> tuple[str, None]:
    """Likelihood and errors for people; see `floater.tasks.events.evaluate`."""
    return str(scored(run, source, part, window)), None
