"""What a study compares translation runs by, held against `evaluate` and the validation's loss."""

import re
from pathlib import Path

import pytest

from floater.tasks.text import read_lines
from floater.tasks.translation import evaluate, load_run
from floater.tasks.translation.score import measure
from floater.tasks.translation.validation import token_loss

from .conftest import Files
from .small import pairs


@pytest.mark.filterwarnings("ignore::floater.tasks.translation.CutTranslation")
def test_it_has_the_scores_of_evaluate_and_the_loss_of_the_validation(trained: Path, files: Files) -> None:
    source, target = files["test_80_100"]
    found, wanted = measure(trained, source, target), evaluate(trained, source, target)
    assert list(found.lines) == wanted.hypotheses
    assert found.score("bleu") == pytest.approx(wanted.scores.bleu)
    assert found.score("chrf") == pytest.approx(wanted.scores.chrf)
    assert found.score("tokenised_bleu") == pytest.approx(wanted.scores.tokenised_bleu)
    assert found.signatures == {
        "bleu": wanted.scores.bleu_signature,
        "chrf": wanted.scores.chrf_signature,
        "tokenised_bleu": wanted.scores.tokenised_signature,
    }

    model, tokenizer = load_run(trained, "cpu")
    nats, tokens = token_loss(model, tokenizer, pairs(files["test_80_100"]))
    assert found.score("loss") == pytest.approx(nats / tokens, rel=1e-5)
    assert found.position_nats.sum() == pytest.approx(nats, rel=1e-5)
    assert found.position_tokens.sum() == tokens
    assert found.position_tokens[0] == len(found.lengths)


@pytest.mark.filterwarnings("ignore::floater.tasks.translation.CutTranslation")
def test_lengths_count_what_the_expression_finds(trained: Path, files: Files) -> None:
    source, target = files["test"]
    lines = read_lines(source)
    assert measure(trained, source, target).lengths.tolist() == [
        len(re.findall(r"\w+|[^\w\s]", line)) for line in lines
    ]
    assert measure(trained, source, target, token=r"\S+").lengths.tolist() == [
        len(line.split()) for line in lines
    ]
