"""Runs whose targets need more than tokens: PNAT, and a noisy length constraint with its predictor."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from floater.lab.cli import main
from floater.lab.settings import SettingsError
from floater.lab.tasks.corpora.text import read_lines
from floater.lab.tasks.translation import CutTranslation, Decoding, translate
from floater.transformer import FloaterForConditionalGeneration, FloaterForNonAutoregressiveGeneration

from .conftest import Files
from .small import equal, load_run, pairs, settings, train

pytestmark = pytest.mark.filterwarnings("ignore::floater.lab.tasks.translation.CutTranslation")
ALL_AT_ONCE = {"model": {"position": "pnat"}, "decoding": {"beam": 1}}
KINDS: dict[str, tuple[dict[str, Any], type]] = {
    "pnat": (ALL_AT_ONCE, FloaterForNonAutoregressiveGeneration),
    "noisy_length": (
        {"model": {"position": "noisy_length", "position_options": {"kind": "ratio", "window": 2}}},
        FloaterForConditionalGeneration,
    ),
    "decoder_position": (
        {"model": {"position": "alibi", "decoder_position": "ldpe"}},
        FloaterForConditionalGeneration,
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, files: Files) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return train(
        settings(folder, files, request.param, **KINDS[request.param][0], training={"eval_steps": 6})
    )


def test_a_run_trains_and_validates(run: Path) -> None:
    log, result = (json.loads((run / name).read_text()) for name in ("log.json", "result.json"))
    losses = [entry["eval_loss"] for entry in log if "eval_loss" in entry]
    assert losses[-1] < losses[0]
    assert sum("eval_bleu" in entry for entry in log) == 2
    assert {"bleu", "perplexity"} <= result.keys()
    model, _ = load_run(run, "cpu")
    assert type(model) is KINDS[run.name][1]
    first, last = (load_file(run / f"checkpoint-{step}" / "model.safetensors") for step in (8, 12))
    moved = {name for name in last if not torch.equal(first[name], last[name])}
    assert {"length.offset.weight", "embedding.weight"} <= moved
    assert (run.name == "pnat") == ("decoder.position.pointer.query.weight" in moved)


def test_the_command_line_translates_and_scores(run: Path, files: Files, tmp_path: Path, capsys: Any) -> None:
    source, reference = map(str, files["test"])
    assert main(["translate", str(run), "--source", source, "--output", str(tmp_path / "out")]) == 0
    lines = read_lines(tmp_path / "out")
    assert len(lines) == len(pairs(files["test"]).source)
    capsys.readouterr()
    assert main(["evaluate", str(run), "--source", source, "--reference", reference]) == 0
    assert "BLEU" in capsys.readouterr().out


def test_a_line_alone_is_translated_as_in_a_batch(run: Path, files: Files) -> None:
    model, tokenizer = load_run(run, "cpu")
    lines, decoding = [*pairs(files["test"]).source, ""], Decoding(beam=1, max_ratio=0.2)
    together = translate(model, tokenizer, lines, decoding)
    assert together == [translate(model, tokenizer, [line], decoding)[0] for line in lines]
    assert together[-1] == ""


def test_a_run_goes_on_as_if_it_had_not_stopped(run: Path, files: Files, tmp_path: Path) -> None:
    parts = KINDS[run.name][0]
    once = train(settings(tmp_path, files, "once", **parts, training={"max_steps": 8}))
    (once / "model" / "model.safetensors").unlink()
    again = settings(tmp_path, files, "again", **parts, training={"max_steps": 8, "save_steps": 4})
    stopped = train(again)
    for name in ("model", "checkpoint-8"):
        for path in sorted((stopped / name).rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        (stopped / name).rmdir()
    resumed = load_file(train(again) / "checkpoint-8" / "model.safetensors")
    assert equal(resumed, load_file(once / "checkpoint-8" / "model.safetensors"))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"decoding": {"beam": 4}},
            "decoding.beam is 4; it must be 1: position model 'pnat' writes all",
        ),
        (
            {"training": {"generation_num_beams": 2, "eval_steps": 4}},
            "training.generation_num_beams is 2; it must be 1",
        ),
    ],
)
def test_a_search_over_what_is_written_at_once_is_refused(
    tmp_path: Path, files: Files, parts: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        settings(tmp_path, files, "run", **(ALL_AT_ONCE | parts))


def test_texts_that_are_too_long_are_cut_and_counted(files: Files, tmp_path: Path) -> None:
    run = train(settings(tmp_path, files, "run", **ALL_AT_ONCE, training={"max_steps": 4, "average_last": 1}))
    model, tokenizer = load_run(run, "cpu")
    with torch.no_grad():
        assert model.length is not None
        model.length.offset.bias[-1] = 1e4  # 20 tokens more than the source has
        model.embedding.weight[tokenizer.eos_token_id] = 0.0
    line = "a " * 60
    with pytest.warns(CutTranslation, match=r"1 of 1 translations reached the longest output \(0.1 x source"):
        translate(model, tokenizer, [line], Decoding(beam=1, max_ratio=0.1))
