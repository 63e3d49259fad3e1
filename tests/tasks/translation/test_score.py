"""Scoring a run on a test set."""

from pathlib import Path

import pytest

from floater.tasks.scores import bleu_by_length, score
from floater.tasks.text import DataError
from floater.tasks.translation import Decoding, evaluate, load_run, translate

from .conftest import Files
from .small import pairs

GREEDY = Decoding(beam=1, max_ratio=0.1)


@pytest.mark.filterwarnings("ignore::floater.tasks.translation.CutTranslation")
def test_a_run_is_scored_by_its_translations(trained: Path, files: Files) -> None:
    test = pairs(files["test"])
    found = evaluate(trained, *files["test"], edges=(4, 8), decoding=GREEDY)
    hypotheses = translate(*load_run(trained), test.source, GREEDY)
    assert found.hypotheses == hypotheses
    assert found.scores == score(hypotheses, test.target, language="de")
    lengths = [len(line.split()) for line in test.source]
    assert found.bins == bleu_by_length(hypotheses, test.target, lengths, [4, 8])
    assert sum(part.count for part in found.bins) == len(lengths)


@pytest.mark.filterwarnings("ignore::floater.tasks.translation.CutTranslation")
def test_the_language_is_that_of_the_run_or_the_one_given(trained: Path, files: Files) -> None:
    german = evaluate(trained, *files["test"], decoding=GREEDY).scores
    french = evaluate(trained, *files["test"], decoding=GREEDY, language="fr").scores
    unknown = evaluate(trained / "model", *files["test"], decoding=GREEDY).scores
    assert "moses-de" in german.tokenised_signature
    assert "moses-fr" in french.tokenised_signature
    assert unknown.tokenised_bleu is None
    assert german.bleu == french.bleu == unknown.bleu


def test_files_that_are_not_aligned_are_refused(trained: Path, files: Files) -> None:
    with pytest.raises(DataError, match="8 and 7 lines"):
        evaluate(trained, files["test"][0], files["valid"][1])
