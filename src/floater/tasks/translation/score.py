"""Scoring a run on a test set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from floater.tasks import cldr
from floater.tasks.measurement import (
    Measurement,
    positions,
    signature,
    text_statistics,
    tokenised_statistics,
)
from floater.tasks.run import SETTINGS, read_by
from floater.tasks.scores import LengthBin, Scores, bleu_by_length, score
from floater.tasks.text import read_pairs
from floater.tasks.translation.decode import translate, translate_and_count
from floater.tasks.translation.run import load_run, run_decoding, run_settings
from floater.tasks.translation.settings import Decoding
from floater.tasks.translation.validation import token_losses


@dataclass(frozen=True)
class Evaluation:
    """Translations of a test set, their scores, and their scores by length of the source."""

    hypotheses: list[str]
    scores: Scores
    bins: list[LengthBin]


def evaluate(
    run: str | Path,
    source: str | Path,
    reference: str | Path,
    *,
    language: str | None = None,
    edges: Sequence[int] = (),
    decoding: Decoding | None = None,
    reading: Any = None,
) -> Evaluation:
    """Translate a test set with a run's final model and score it.

    Args:
        run: a finished run directory, or a saved model.
        source: source sentences, one a line.
        reference: their translations.
        language: of the references; by default the run's target language.
        edges: bounds of the bins of source length, in words between spaces; none for no bins.
        decoding: by default what the run's configuration says.
        reading: how to read long sentences, see `Reading.of`; by default as the model does.

    Returns:
        Translations, scores, and scores by length.

    Raises:
        DataError: if the run or a file is not what it must be.
        PositionError: if a source line is longer than learned positions reach, or the model cannot read so.
    """
    pairs = read_pairs(source, reference, skip_empty=False)
    if language is None and (Path(run) / SETTINGS).is_file():
        language = run_settings(run).data.target
    model, tokenizer = load_run(run)
    read_by(model, reading)
    hypotheses = translate(model, tokenizer, pairs.source, decoding or run_decoding(run))
    lengths = [len(line.split()) for line in pairs.source]
    bins = bleu_by_length(hypotheses, pairs.target, lengths, edges) if edges else []
    return Evaluation(hypotheses, score(hypotheses, pairs.target, language=language), bins)


def measure(
    run: str | Path, source: str | Path, reference: str | Path, token: str = cldr.TOKEN
) -> Measurement:
    """BLEU, chrF and loss of a run's final model on a test set, sentence by sentence.

    Tokenised BLEU, too, where Moses knows the target language (see `floater.tasks.scores.score`). Lengths
    are those of the source in words and punctuation marks, before BPE; the position of a loss is that of its
    token in the reference.

    Args:
        run: a finished run directory.
        source: source sentences, one a line, plain or .gz.
        reference: their translations.
        token: regular expression of a word or a punctuation mark.

    Raises:
        DataError: if the run or a file is not what it must be.
        PositionError: if a source line is longer than learned positions reach.
    """
    pairs = read_pairs(source, reference)
    model, tokenizer = load_run(run)
    hypotheses, cut = translate_and_count(model, tokenizer, pairs.source, run_decoding(run))
    nats: list[np.ndarray] = [np.zeros(0)] * len(hypotheses)
    for indices, losses, there in token_losses(model, tokenizer, pairs):
        for index, row, known in zip(indices, losses.cpu(), there.cpu(), strict=True):
            nats[index] = row[known].double().numpy()
    sums, counts = positions(nats)
    notes = (
        [f"{cut} of {len(hypotheses)} translations reached the longest output and were cut"] if cut else []
    )
    if pairs.skipped:
        notes.append(f"{pairs.skipped} pairs with an empty side were left out")
    statistics = text_statistics(hypotheses, pairs.target)
    signatures = {name: signature(name) for name in statistics}
    with suppress(ValueError):  # Moses does not know the language
        found = tokenised_statistics(hypotheses, pairs.target, run_settings(run).data.target)
        statistics["tokenised_bleu"], signatures["tokenised_bleu"] = found
    return Measurement(
        lengths=np.array([len(re.findall(token, line)) for line in pairs.source]),
        statistics=statistics | {"loss": np.array([[row.sum(), len(row)] for row in nats])},
        position_nats=sums,
        position_tokens=counts,
        lines=hypotheses,
        notes=notes,
        signatures=signatures,
    )
