"""The flow of a plugged checkpoint learns alone, and goes on from there in another task."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import floater
from floater.lab.cli import main
from floater.lab.settings import load
from floater.lab.tasks import task
from floater.lab.tasks.finetuning.checkpoint import load_tokenizer
from floater.lab.tasks.masked_lm import MaskedLMSettings, encode
from helpers import write_run_config
from processes import in_two_processes

TASK = task("masked_lm")
train, evaluate = TASK.train, TASK.evaluate
FEW = {"max_steps": 1, "eval_steps": 1, "save_steps": 1}
ORDER = "the film was good in rome it is not a bad city"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text in which a word follows from its place: the checkpoint's own positions are random ones."""
    directory = tmp_path_factory.mktemp("masked")
    (directory / "text.txt").write_text(f"{ORDER}\n\n" * 20, encoding="utf-8")
    return directory


def write_config(folder: Path, checkpoint: Path, name: str, **parts: Any) -> Path:
    config = {
        "task": "masked_lm",
        "data": {"train": str(folder / "text.txt"), "valid": str(folder / "text.txt"), "block": 32},
        "model": {"path": str(checkpoint)},
        "plug": {"options": {"delta": 1.0}, "train": "flow"},
        "training": {
            "learning_rate": 3e-2,
            "max_tokens": 240,
            "max_steps": 30,
            "save_steps": 15,
        },
    }
    return write_run_config(folder / f"{name}.yaml", config, **parts)


def test_the_flow_alone_lowers_the_loss_of_a_frozen_model(folder: Path, bert: Path) -> None:
    run = train(load(MaskedLMSettings, write_config(folder, bert, "flow")))
    result = json.loads((run / "result.json").read_text())
    assert result["loss"] < result["loss_before"] - 0.2
    assert evaluate(run, str(folder / "text.txt")).scores["loss"] == result["loss"]
    after = floater.load(run / "model")
    floater.unplug(after)
    before = type(after).from_pretrained(bert)
    weights = after.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in before.state_dict().items())
    plug = {"options": None, "train": "all"}
    again = train(load(MaskedLMSettings, write_config(folder, run, "again", plug=plug, training=FEW)))
    assert json.loads((again / "result.json").read_text())["loss_before"] == result["loss"]


def test_rows_are_documents_between_the_special_tokens(bert: Path) -> None:
    tokenizer = load_tokenizer(str(bert))
    rows = encode(tokenizer, [["the film", "was good"], ["rome"]], block=5)
    said = [tokenizer.decode(rows[i]["input_ids"]) for i in range(len(rows))]
    assert said == ["[CLS] the film was [SEP]", "[CLS] good [SEP]", "[CLS] rome [SEP]"]
    assert rows.lengths == [5, 3, 3]


def test_what_a_person_gets_wrong(folder: Path, bert: Path, said: Callable[..., str]) -> None:
    config = str(write_config(folder, bert, "new"))

    assert "plug.options={} does that" in said("train", config, "plug.options=null")
    assert "lower data.block" in said(
        "train",
        config,
        "data.documents=file",
        "data.block=100",
        "training.max_tokens=100",
        "plug.options=null",
        "plug.train=all",
    )
    (folder / "short.txt").write_text(ORDER, encoding="utf-8")
    assert "cannot read rows of 100 tokens" in said(
        "train",
        config,
        "data.documents=file",
        "data.block=100",
        f"data.valid={folder / 'short.txt'}",
        "training.max_tokens=100",
        "plug.options=null",
        "plug.train=all",
    )
    assert "more than a batch" in said("train", config, "data.block=300")
    assert "cannot be read" in said("train", config, "data.valid=none.txt")
    (folder / "unknown.txt").write_text("☃ ☃ ☃\n", encoding="utf-8")
    assert "has no token to predict" in said("train", config, f"data.valid={folder / 'unknown.txt'}")
    (folder / "nothing.txt").write_text("\u200b\n", encoding="utf-8")
    assert "makes no token of the text" in said("train", config, f"data.valid={folder / 'nothing.txt'}")


def test_two_processes_score_what_one_scores(folder: Path, bert: Path) -> None:
    config = write_config(folder, bert, "two", training=FEW)
    said = in_two_processes(main, ["train", str(config)], folder=folder)
    assert "".join(said).count("loss before training") == 1
    train(load(MaskedLMSettings, write_config(folder, bert, "one", training=FEW)))
    one, two = (json.loads((folder / name / "result.json").read_text()) for name in ("one", "two"))
    assert two["loss_before"] == pytest.approx(
        one["loss_before"], abs=1.01e-4
    )  # sums in another order, rounded
