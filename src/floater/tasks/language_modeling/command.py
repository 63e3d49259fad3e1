"""Language modelling on the command line."""

from __future__ import annotations

from floater.tasks.language_modeling.settings import LanguageModelingSettings as Settings
from floater.tasks.language_modeling.train import check, check_test, measure, train
from floater.tasks.language_modeling.train import evaluate as scored

__all__ = ["OPTIONS", "Settings", "check", "check_test", "evaluate", "lengths", "measure", "train"]

OPTIONS = {"window": False, "stride": False, "memory": False}


def evaluate(
    run: str,
    source: str,
    *,
    window: int | None = None,
    stride: int | None = None,
    memory: int | None = None,
) -> tuple[str, None]:
    """Perplexity for people; see `floater.tasks.language_modeling.evaluate`."""
    return str(scored(run, source, window=window, stride=stride, memory=memory)), None


def lengths(settings: Settings) -> str:
    """What the lengths of examples count."""
    return "predicted tokens of a row"
