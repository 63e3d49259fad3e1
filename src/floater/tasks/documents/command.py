"""Documents on the command line."""

from __future__ import annotations

from floater.tasks.documents.score import evaluate as scored
from floater.tasks.documents.score import measure
from floater.tasks.documents.settings import DocumentsSettings as Settings
from floater.tasks.documents.train import check, train

__all__ = ["OPTIONS", "Settings", "check", "evaluate", "lengths", "measure", "train"]

OPTIONS = {"part": False, "output": False}


def evaluate(run: str, source: str, part: str | None = None) -> tuple[str, list[str]]:
    """Accuracy for people, and the label of each document; see `floater.tasks.documents.evaluate`."""
    result = scored(run, source, part)
    return str(result), result.labels


def lengths(settings: Settings) -> str:
    """What the lengths of examples count."""
    return "words"
