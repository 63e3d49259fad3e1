"""Study scores of translation runs, against `evaluate` and the validation loss."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from floater.encodings import PositionError
from floater.lab.settings import make
from floater.lab.tasks.corpora.text import Pairs, read_lines
from floater.lab.tasks.translation import TranslationSettings
from floater.lab.tasks.translation.validation import token_losses
from floater.lab.text.bpe import train_bpe
from floater.transformer import FloaterForConditionalGeneration

from . import small
from .conftest import Files
from .small import TASK, evaluate, load_run, measure, pairs


@pytest.mark.filterwarnings("ignore::floater.lab.tasks.translation.CutTranslation")
def test_it_has_the_scores_of_evaluate_and_the_loss_of_the_validation(trained: Path, files: Files) -> None:
    source, target = files["test_80_100"]
    actual, wanted = measure(trained, source, target), evaluate(trained, source, reference=target)
    assert list(actual.lines) == list(wanted.lines)
    assert actual.score("bleu") == pytest.approx(wanted.scores["bleu"])
    assert actual.score("chrf") == pytest.approx(wanted.scores["chrf"])
    assert actual.score("tokenised_bleu") == pytest.approx(wanted.scores["tokenised_bleu"])
    assert actual.signatures == wanted.signatures
    assert actual.lengths.tolist() == wanted.lengths.tolist()
    assert {*actual.metrics} == {*TASK.metrics, "length_ratio"}

    model, tokenizer = load_run(trained, "cpu")
    losses = np.concatenate(token_losses(model, tokenizer, pairs(files["test_80_100"])))
    nats, tokens = losses.sum(), len(losses)
    assert actual.score("loss") == pytest.approx(nats / tokens, rel=1e-5)
    assert actual.position_nats.sum() == pytest.approx(nats, rel=1e-5)
    assert actual.position_tokens.sum() == tokens
    assert actual.position_tokens[0] == len(actual.lengths)


@pytest.mark.filterwarnings("ignore::floater.lab.tasks.translation.CutTranslation")
def test_lengths_count_what_the_expression_finds(trained: Path, files: Files) -> None:
    source, target = files["test"]
    lines = read_lines(source)
    assert measure(trained, source, target).lengths.tolist() == [
        len(re.findall(r"\w+|[^\w\s]", line)) for line in lines
    ]
    assert measure(trained, source, target, token=r"\S+").lengths.tolist() == [
        len(line.split()) for line in lines
    ]


@pytest.mark.parametrize(
    ("side", "encodings"),
    [
        ("source", {"position": "learned"}),
        ("reference", {"position": "learned"}),
        ("source", {"position": "learned", "decoder_position": "alibi"}),
        ("reference", {"position": "alibi", "decoder_position": "learned"}),
    ],
)
def test_a_test_set_is_refused_where_the_positions_end(
    tmp_path: Path, side: str, encodings: dict[str, str]
) -> None:
    """15 words of a token each, and the end, take all of 16 positions, on either side."""
    parts = {"data": {"builtin": 9}, "model": {"preset": "tiny", "max_length": 16, **encodings}}
    run_settings = make(TranslationSettings, {"run": str(tmp_path / "run"), **parts}, "here")
    tokenizer = train_bpe(["a a a"] * 9, 262)
    torch.manual_seed(0)
    model = FloaterForConditionalGeneration(run_settings.model.config(len(tokenizer)))
    files = {name: tmp_path / name for name in ("source", "reference")}
    for words in (15, 16):
        lines = {name: " ".join("a" * (words if name == side else 2)) for name in files}
        for name, file in files.items():
            file.write_text(lines[name] + "\n")
        asked = Pairs([lines["source"]], [lines["reference"]], 0)
        if words == 15:
            TASK.check_test(run_settings, **{name: str(file) for name, file in files.items()})
            (nats,) = token_losses(model, tokenizer, asked)
            assert len(nats) == (16 if side == "reference" else 3)
            continue
        with pytest.raises(
            PositionError, match=f"16 positions, but the longest line of {files[side]} has 16"
        ):
            TASK.check_test(run_settings, **{name: str(file) for name, file in files.items()})
        with pytest.raises(PositionError):
            token_losses(model, tokenizer, asked)


def test_the_unit_of_lengths_is_that_of_the_source_language(tmp_path: Path) -> None:
    for source, unit in (("hi", "words"), ("zh-Hans", "characters, words")):
        parts = {"data": {"builtin": 9, "source": source}, "run": str(tmp_path)}
        run_settings = make(TranslationSettings, parts, "here")
        assert TASK.lengths(run_settings) == f"{unit} and punctuation marks of the source"


def test_a_test_set_is_refused_in_tokens_of_the_vocabulary_that_a_run_trains(tmp_path: Path) -> None:
    """One word, of which nobody knows the tokens before, is longer than the learned positions."""
    run_settings = small.settings(
        tmp_path, small.write_corpus(tmp_path), "run", model={"position": "learned"}
    )
    files = {name: tmp_path / name for name in ("source", "reference")}
    for file in files.values():
        file.write_text("a" + "qx" * 200 + "\n")
    long = {name: str(file) for name, file in files.items()}
    TASK.check_test(run_settings, **long)
    with pytest.raises(PositionError, match=r"test long: .*128 positions, but the longest line of .* tokens"):
        TASK.train(run_settings, tests={"long": long})
    assert not [*Path(run_settings.run).glob("checkpoint-*")]
