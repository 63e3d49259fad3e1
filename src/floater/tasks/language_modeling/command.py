"""Language modelling on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from floater.tasks.language_modeling.settings import LanguageModelingSettings as Settings
from floater.tasks.language_modeling.train import check, check_test, measure, reads_in_order, train
from floater.tasks.language_modeling.train import evaluate as scored

__all__ = ["OPTIONS", "Settings", "check", "check_test", "evaluate", "lengths", "measure", "train"]

OPTIONS = {"window": False, "stride": False, "memory": False, "bins": False, "reading": False}


def evaluate(
    run: str,
    source: str,
    *,
    window: int | None = None,
    stride: int | None = None,
    memory: int | None = None,
    bins: Sequence[int] = (),
    reading: str | None = None,
) -> tuple[str, None]:
    """Perplexity for people; see `floater.tasks.language_modeling.evaluate`."""
    score = scored(run, source, window=window, stride=stride, memory=memory, edges=bins, reading=reading)
    return str(score), None


def lengths(settings: Settings) -> str:
    """What the lengths of examples count."""
    return "tokens read before" if reads_in_order(settings) else "predicted tokens of a row"
