"""Fine-tuning on GLUE: what it learns, the plug, runs that go on, predictions, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import floater
from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.settings import SettingsError, load, make
from floater.lab.study.glue_table import table
from floater.lab.study.run import study
from floater.lab.study.settings import StudySettings
from floater.lab.tasks import stored, task
from floater.lab.tasks.corpora.glue import TASKS, read_examples
from floater.lab.tasks.finetuning.features import CutTexts
from floater.lab.tasks.glue import GlueSettings
from floater.lab.tasks.language_modeling import LanguageModelingSettings
from helpers import equal_runs, train_killed
from lab.study.small import run_inline

from .small import settings, write_cola, write_config

TASK = task("glue")
train, evaluate, predict = TASK.train, TASK.evaluate, TASK.predict
LEARN = {"max_steps": 60, "eval_steps": 30, "save_steps": 30}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("glue")
    write_cola(directory)
    return directory


@pytest.fixture(scope="module")
def learned(folder: Path, bert: Path) -> Path:
    """A finished run with a new flow; read only."""
    return train(settings(folder, bert, "learned", training=LEARN, plug={"options": {"delta": 0.2}}))


def test_a_plugged_checkpoint_learns_what_is_acceptable(learned: Path, folder: Path) -> None:
    result = json.loads((learned / "result.json").read_text())
    assert result["matthews"] > 90
    assert result["steps"] == 60
    actual = evaluate(learned, str(folder / "CoLA" / "dev.tsv"))
    assert actual.scores == {name: result[name] for name in ("loss", "matthews")}
    gold = read_examples(folder / "CoLA" / "dev.tsv", TASKS["CoLA"]).labels
    said = [int(line.split("\t")[1]) for line in actual.lines[1:]]
    assert sum(a == b for a, b in zip(said, gold, strict=True)) >= 38


def test_the_flow_was_trained_and_is_saved_with_the_model(learned: Path, folder: Path) -> None:
    model = floater.load(learned / "model")
    assert model.config.floater["delta"] == 0.2
    starts = [p for name, p in model.named_parameters() if name.endswith("start")]
    assert starts
    assert all(bool(p.any()) for p in starts), "they began as zero"


def test_predictions_are_those_of_the_saved_model_and_keep_their_indices(learned: Path, folder: Path) -> None:
    assert predict(learned, str(folder / "CoLA" / "test.tsv")) == ["index\tprediction", "7\t1", "3\t0"]


def test_stored_examples_train_as_from_memory(
    folder: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials with another plug share them, and encode validation examples alone."""
    whole = train(settings(folder, bert, "memory"))
    monkeypatch.setattr(stored, "LARGE", 0)
    assert equal_runs(train(settings(folder, bert, "mapped"), encoded=tmp_path), whole)
    names = {path.name for path in tmp_path.iterdir()}
    assert len(names) == 1  # tokens
    encode = TASK.encode

    def only_validation(*arguments: Any, training: bool = False) -> Any:
        assert not training
        return encode(*arguments)

    monkeypatch.setattr(TASK, "encode", only_validation)
    train(settings(folder, bert, "plugged", plug={"options": {}}), encoded=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == names


def test_the_plug_changes_nothing_before_the_first_step(folder: Path, bert: Path) -> None:
    """With a rate of nearly nothing, baseline and FLOATER are the same model."""
    still = {"learning_rate": 1e-12, "max_steps": 2, "eval_steps": 2, "save_steps": 2}
    runs = [
        train(settings(folder, bert, name, training=still, plug=plug))
        for name, plug in (("still", {}), ("still-plugged", {"options": {}}))
    ]
    results = [json.loads((run / "result.json").read_text()) for run in runs]
    assert results[0]["loss"] == results[1]["loss"]


@pytest.mark.parametrize("part", ["flow", "model"])
def test_only_the_part_that_is_named_is_trained(folder: Path, bert: Path, learned: Path, part: str) -> None:
    plug = {"flow": str(learned), "train": part}
    run = train(settings(folder, bert, f"only-{part}", plug=plug))
    before, after = (floater.load(path / "model").state_dict() for path in (learned, run))
    flow = [name for name in after if name.startswith("floater.")]
    assert flow
    assert any(not torch.equal(before[name], after[name]) for name in flow) == (part == "flow")
    fresh = AutoModelForSequenceClassification.from_pretrained(bert).state_dict()
    inner = [name for name in fresh if name.startswith("bert.encoder")]
    assert any(not torch.equal(fresh[name], after[name]) for name in inner) == (part == "model")


@pytest.mark.parametrize("plug", [{}, {"options": {"start": "small"}}], ids=["baseline", "floater"])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    folder: Path, bert: Path, plug: dict[str, object]
) -> None:
    name = "small" if plug else "none"
    whole = train(settings(folder, bert, f"whole-{name}", plug=plug))

    run = train_killed(TASK, settings(folder, bert, f"part-{name}", plug=plug))
    assert equal_runs(run, whole)


def test_a_model_of_this_library_goes_from_masked_words_to_glue(folder: Path, tmp_path: Path) -> None:
    """Its encoder is the pretrained one, its vocabulary puts <s> before a text."""
    text = tmp_path / "text.txt"
    text.write_text("the film was good\n\nthe city is bad\n" * 20)
    pretraining = tmp_path / "masked.yaml"
    changes = "{hidden_size: 16, intermediate_size: 16, num_attention_heads: 2, num_hidden_layers: 1}"
    pretraining.write_text(
        f"run: {tmp_path / 'masked'}\ntask: language_modeling\nobjective: masked\n"
        f"data: {{train: {text}, valid: {text}, block: 16, vocabulary_size: 300}}\n"
        f"model: {{preset: tiny, max_length: 32, changes: {changes}}}\n"
        "training: {max_steps: 4, warmup_steps: 1, max_tokens: 64, save_steps: 1, eval_steps: 1, "
        "average_last: 1, save_total_limit: 1, keep_steps: [2]}\n"
    )
    masked = task("language_modeling").train(load(LanguageModelingSettings, pretraining))
    still = {"learning_rate": 1e-12, "max_steps": 2, "eval_steps": 2, "save_steps": 2}
    run = train(settings(folder, masked, "own", training=still))
    before, after = (floater.lab.training.average([path / "model"]) for path in (masked, run))
    assert torch.allclose(before["model.embedding.weight"], after["model.embedding.weight"], atol=1e-9)
    assert len(predict(run, str(folder / "CoLA" / "test.tsv"))) == 3
    # from a checkpoint on the way, too, which is another model
    named = train(settings(folder, masked / "checkpoint-2", "named", training=still))
    on_the_way = floater.lab.training.average([named / "model"])["model.embedding.weight"]
    kept = floater.lab.training.average([masked / "checkpoint-2"])["model.embedding.weight"]
    assert torch.allclose(kept, on_the_way, atol=1e-9)
    assert not torch.allclose(before["model.embedding.weight"], on_the_way, atol=1e-6)


def test_the_table_sets_runs_beside_each_other(folder: Path, bert: Path, learned: Path) -> None:
    for seed in (2, 3):
        train(settings(folder, bert, f"seed-{seed}", training={"seed": seed}))
    other = train(settings(folder, bert, "seed-4", training={"seed": 4}, plug={"options": {}}))
    runs = [str(folder / f"seed-{seed}") for seed in (2, 3)]
    scores = [json.loads((Path(run) / "result.json").read_text())["matthews"] for run in runs]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table([*runs, str(other)]).splitlines()
    ]
    assert rows[0][:3] == ["Model", "Single Sentence", ""]
    assert rows[2][1] == "CoLA (matthews)"
    assert [row[0] for row in rows[3:]] == [f"*{bert}*", "baseline", "FLOATER"]
    middle, low, high = sum(scores) / 2, min(scores), max(scores)
    assert rows[4][1] == f"{middle:.1f} ({low:.1f}-{high:.1f}, 2)"
    assert rows[4][2] == "-"
    further = train(settings(folder, other, "further", plug={"options": None}))
    assert "\n| FLOATER (of the checkpoint) " in table([str(further)])


def test_a_study_trains_and_tables_what_it_found(
    folder: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_inline(monkeypatch, report=False)
    asked = {
        "folder": str(tmp_path / "study"),
        "task": "glue",
        "settings": {
            "data": {"folder": str(folder), "max_length": 32},
            "model": {"path": str(bert)},
            "training": {"max_steps": 2, "eval_steps": 2, "save_steps": 2},
        },
        "models": {"floater": {"settings": {"plug": {"options": {}}}}},
        "axes": {"task": {"CoLA": {"data": {"task": "CoLA"}}}},
        "seeds": [1],
        "figures": [],
        "keep_checkpoints": False,
        "keep_models": False,
    }
    results = study(make(StudySettings, asked, "here"))
    assert [outcome.status for outcome in results.outcomes] == ["finished"]
    table = (tmp_path / "study/glue.md").read_text()
    score = json.loads((tmp_path / "study/trials/floater-CoLA-1/result.json").read_text())["matthews"]
    assert "| FLOATER" in table
    assert f"| {score:.1f} (1) " in table
    assert not [*(tmp_path / "study").rglob("*.safetensors")]
    cost = json.loads((tmp_path / "study/trials/floater-CoLA-1/cost.json").read_text())
    assert 0 < cost["position_parameters"] < cost["parameters"]  # those of the plugged flow


def test_the_best_validation_is_that_of_roberta_or_of_the_metric() -> None:
    def best(name: str, **data: Any) -> dict[str, Any]:
        tree = {"run": "run", "data": {"task": name, "folder": "glue", **data}, "model": {"path": "bert"}}
        return task("glue").best(make(GlueSettings, tree, "here"))

    assert best("STS-B") == {"metric": "loss", "greater": False}
    assert best("STS-B", select="metric") == {"metric": "pearson", "greater": True}
    assert best("CoLA") == best("CoLA", select="metric") == {"metric": "matthews", "greater": True}


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CoLA with sentences of one word to train, and one of 70 words to validate."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "CoLA").mkdir()
    (folder / "CoLA" / "train.tsv").write_text("a\t1\t\tgood\nb\t0\t\tbad\n")
    (folder / "CoLA" / "dev.tsv").write_text(f"a\t1\t\t{'good ' * 70}\nb\t0\t\tbad\n")
    return folder


ONCE = {"max_steps": 1, "eval_steps": 1, "save_steps": 1}


def test_a_sentence_beyond_the_positions_is_refused_wherever_it_is(
    bert: Path, long: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In validation before anything is written, in the file that a finished run reads in one line."""
    train_tsv, dev_tsv = (long / "CoLA" / f"{name}.tsv" for name in ("train", "dev"))
    data = {"folder": str(long), "max_length": 100}
    config = write_config(tmp_path, bert, data=data, training=ONCE)
    assert main(["train", str(config)]) == 2
    assert "cannot read an example of 72 tokens" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()
    short = tmp_path / "CoLA"
    short.mkdir()
    for name in ("train", "dev"):
        (short / f"{name}.tsv").write_text(train_tsv.read_text())
    assert main(["train", str(config), f"data.folder={tmp_path}"]) == 0
    for command in ("evaluate", "predict"):
        assert main([command, str(tmp_path / "run"), "--source", str(dev_tsv)]) == 2
        assert "cannot read an example of 72 tokens" in capsys.readouterr().err.splitlines()[-1]


def test_sentences_that_lose_their_ends_are_said_wherever_they_are(
    bert: Path, long: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(settings(tmp_path, bert, data={"folder": str(long), "max_length": 50}, training=ONCE))
    said = capsys.readouterr().err
    assert "1 validation texts cut at data.max_length" in said
    assert "training texts cut" not in said
    source = str(long / "CoLA" / "dev.tsv")
    for reads in (evaluate, predict):
        with pytest.warns(CutTexts, match=r"^1 texts cut at data\.max_length$"):
            reads(run, source)


def test_broken_lines_are_said_wherever_they_are(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "QQP").mkdir()
    lines = [f"{i}\t1\t2\tgood\t{'good' if i % 2 else 'bad'}\t{i % 2}" for i in range(8)]
    text = "\n".join(["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", *lines, "8\tbroken"])
    for split in ("train", "dev"):
        (tmp_path / "QQP" / f"{split}.tsv").write_text(text + "\n", encoding="utf-8")
    run = train(settings(tmp_path, bert, data={"folder": str(tmp_path), "task": "QQP"}, training=ONCE))
    said = capsys.readouterr().err
    for split in ("train", "dev"):
        assert f"{split}.tsv: 1 broken lines excluded" in said
    dev = str(tmp_path / "QQP" / "dev.tsv")
    evaluate(run, dev)
    assert "dev.tsv: 1 broken lines excluded" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"dev\.tsv, line 10: 2 fields between tabs"):
        predict(run, dev)


def test_what_a_person_gets_wrong_is_one_line_and_nothing_is_written(
    folder: Path, bert: Path, learned: Path, tmp_path: Path, said: Callable[..., str]
) -> None:
    config = str(write_config(folder, bert, "new"))
    assert "unknown task of GLUE 'cola'; did you mean 'CoLA'?" in said("train", config, "data.task=cola")
    assert "there is no such directory" in said("train", config, "model.path=/nowhere")
    assert f"did you mean {bert}?" in said("train", config, f"model.path={bert}s")
    assert "no package 'no_such'" in said("train", config, "model.path=package:no_such/model")
    assert "did you mean 'delta'?" in said("train", config, "plug.options={delt: 1}")
    assert "plug.options={} does that" in said("train", config, "plug.train=flow")
    assert "holds no flow" in said("train", config, f"plug.flow={bert}")
    assert "has no 'droput'" in said("train", config, "model.config={droput: 0.1}")
    assert "cannot be 'high'" in said("train", config, "model.config={hidden_dropout_prob: high}")
    for key in ("num_labels: 7", "problem_type: regression", "return_dict: false"):
        assert "it follows from the task" in said("train", config, f"model.config={{{key}}}")
    frozen = "plug.options={freeze_model: true}", "plug.train=model"
    assert "nothing is left to be trained" in said("train", config, *frozen)
    assert "is plugged already" in said("train", config, f"model.path={learned}", "plug.options={}")
    assert "warmup_steps is 8; it must be below the training's 8 steps" in said(
        "train", config, "training.warmup_steps=8"
    )
    long = tmp_path / "CoLA"
    long.mkdir()
    for name in ("train", "dev"):
        (long / f"{name}.tsv").write_text(f"a\t1\t\t{'good ' * 70}\nb\t0\t\tbad\n")
    refused = said("train", config, f"data.folder={tmp_path}", "data.max_length=72")
    assert "cannot read an example of 72 tokens" in refused
    assert "lower data.max_length" in refused
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((bert / name).read_bytes())
    assert "no tokenizer can be read" in said("train", config, f"model.path={bare}")
    test = str(folder / "CoLA" / "test.tsv")
    assert "no labels (column" in said("evaluate", str(learned), "--source", test)
    assert "takes no --threshold" in said("evaluate", str(learned), "--source", test, "--threshold", "1")
    assert "are the same run" in said("glue", str(learned), str(learned))
    for result in ("{", "[]", "{}"):
        (learned / "result.json").rename(tmp_path / "result.json")
        (learned / "result.json").write_text(result)
        assert "result.json is not the result of a GLUE run" in said("glue", str(learned))
        (tmp_path / "result.json").replace(learned / "result.json")
    with pytest.raises(SettingsError, match="give exactly one of folder and dataset"):
        load(GlueSettings, config, ["data.dataset=nyu-mll/glue"])
