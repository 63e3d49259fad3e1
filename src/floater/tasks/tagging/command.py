"""Tagging on the command line."""

from __future__ import annotations

from floater.tasks.tagging.score import evaluate as scored
from floater.tasks.tagging.score import measure
from floater.tasks.tagging.settings import TaggingSettings as Settings
from floater.tasks.tagging.train import check, check_test, train

__all__ = ["OPTIONS", "Settings", "check", "check_test", "evaluate", "lengths", "measure", "train"]

OPTIONS = {"output": False}


def evaluate(run: str, source: str) -> tuple[str, list[str]]:
    """Accuracy for people, and the tags of each sentence; see `floater.tasks.tagging.evaluate`."""
    result = scored(run, source)
    return str(result), [" ".join(tags) for tags in result.tags]


def lengths(settings: Settings) -> str:
    """What the lengths of examples count."""
    return "words"
