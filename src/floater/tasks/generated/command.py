"""Generated tasks on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from floater.tasks.generated.settings import GeneratedSettings as Settings
from floater.tasks.generated.train import check, check_test, measure, train
from floater.tasks.generated.train import evaluate as scored
from floater.tasks.text import DataError

__all__ = ["OPTIONS", "Settings", "check", "check_test", "evaluate", "lengths", "measure", "train"]

OPTIONS = {"source": False, "bins": False, "reading": False}


def evaluate(
    run: str, source: str | None, *, bins: Sequence[int] = (), reading: str | None = None
) -> tuple[str, None]:
    """Exact match by length for people; see `floater.tasks.generated.evaluate`."""
    if source is not None:
        raise DataError(
            f"{run} is a run of task 'generated', which draws its own questions; it takes no --source"
        )
    return str(scored(run, tuple(bins), reading)), None


def lengths(settings: Settings) -> str:
    """What the lengths of examples count."""
    return settings.data.unit
