"""Scoring a run on a test set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from floater.settings import load
from floater.tasks.scores import LengthBin, Scores, bleu_by_length, score
from floater.tasks.text import read_pairs
from floater.tasks.translation.decode import load_run, translate
from floater.tasks.translation.run import SETTINGS
from floater.tasks.translation.settings import Decoding, TranslationSettings


@dataclass(frozen=True)
class Evaluation:
    """Translations of a test set, their scores, and their scores by length of the source."""

    hypotheses: list[str]
    scores: Scores
    bins: list[LengthBin]


def run_settings(run: str | Path) -> TranslationSettings | None:
    """The settings of a run; None for a model that is no run of this task."""
    path = Path(run) / SETTINGS
    return load(TranslationSettings, path) if path.is_file() else None


def run_decoding(run: str | Path) -> Decoding:
    """How a run translates: what its configuration says, or the defaults."""
    settings = run_settings(run)
    return settings.decoding if settings else Decoding()


def evaluate(
    run: str | Path,
    source: str | Path,
    reference: str | Path,
    *,
    language: str | None = None,
    edges: Sequence[int] = (),
    decoding: Decoding | None = None,
) -> Evaluation:
    """Translate a test set with a run's final model and score it.

    Args:
        run: a finished run directory, or a saved model.
        source: source sentences, one a line.
        reference: their translations.
        language: of the references; by default the run's target language.
        edges: bounds of the bins of source length, in words; none for no bins.
        decoding: by default what the run's configuration says.

    Returns:
        Translations, scores, and scores by length.

    Raises:
        DataError: if the run or a file is not what it must be.
    """
    pairs = read_pairs(source, reference, skip_empty=False)
    settings = run_settings(run)
    if language is None and settings is not None:
        language = settings.data.target
    model, tokenizer = load_run(run)
    hypotheses = translate(model, tokenizer, pairs.source, decoding or run_decoding(run))
    lengths = [len(line.split()) for line in pairs.source]
    bins = bleu_by_length(hypotheses, pairs.target, lengths, edges) if edges else []
    return Evaluation(hypotheses, score(hypotheses, pairs.target, language=language), bins)
