"""Translation on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from floater.tasks.translation.score import evaluate as scored
from floater.tasks.translation.score import measure
from floater.tasks.translation.settings import TranslationSettings as Settings
from floater.tasks.translation.train import check, check_test, train

__all__ = ["OPTIONS", "Settings", "check", "check_test", "evaluate", "lengths", "measure", "train"]

OPTIONS = {"reference": True, "output": False, "language": False, "bins": False, "reading": False}


def evaluate(
    run: str,
    source: str,
    *,
    reference: str,
    language: str | None = None,
    bins: Sequence[int] = (),
    reading: str | None = None,
) -> tuple[str, list[str]]:
    """Scores for people, and the translations; see `floater.tasks.translation.evaluate`."""
    result = scored(run, source, reference, language=language, edges=bins, reading=reading)
    lines = [str(result.scores)]
    for part in result.bins:
        bounds = f"{part.low} to {part.high - 1} words" if part.high else f"{part.low} words and more"
        scores = "-" if part.bleu is None else f"BLEU {part.bleu:.2f}  chrF {part.chrf:.2f}"
        lines.append(f"{bounds:<22} {part.count:>6} lines  {scores}")
    return "\n".join(lines), result.hypotheses


def lengths(settings: Settings) -> str:
    """What the lengths of examples count."""
    return "words and punctuation marks of the source"
