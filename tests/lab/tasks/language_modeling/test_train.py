"""Whole trainings: what they write, resume and print, and what they refuse."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, pipeline

from floater.lab.cli import main
from floater.lab.settings import load, make
from floater.lab.tasks import task
from floater.lab.tasks.language_modeling import LanguageModelingSettings
from floater.lab.tasks.language_modeling.data import Rows, begin_id, encode_documents, read_documents
from floater.lab.tasks.language_modeling.trainer import LanguageModelTrainer
from floater.lab.text.bpe import load_bpe, train_bpe
from floater.lab.training import FloaterTrainer, average, checkpoints

from .small import SIZES, settings, write_config, write_texts

TASK = task("language_modeling")
train, evaluate, load_run = TASK.train, TASK.evaluate, TASK.load


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("language")
    write_texts(path)
    return path


@pytest.fixture(scope="session")
def causal(folder: Path) -> Path:
    """A finished run of a FLOATER model; read only."""
    return train(settings(folder, "causal", model={"position": "floater"}))


@pytest.fixture(scope="session")
def masked(folder: Path) -> Path:
    """A finished run over several epochs; read only."""
    small = {"max_tokens": 300}
    return train(settings(folder, "masked", objective="masked", training=small))


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_trainer_is_that_of_the_other_tasks() -> None:
    assert issubclass(LanguageModelTrainer, FloaterTrainer)


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_a_run_learns_and_says_what_it_found(
    objective: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    run: Path = request.getfixturevalue(objective)
    log, result = read(run / "log.json"), read(run / "result.json")
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert len(losses) == result["steps"] == 12
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    validations = [entry for entry in log if "eval_loss" in entry]
    assert [entry["step"] for entry in validations] == [6, 12]
    assert result["best_valid_loss"] == min(entry["eval_loss"] for entry in validations)
    assert result["averaged"] == ["checkpoint-8", "checkpoint-12"]
    weights = load_file(run / "model" / "model.safetensors")
    assert all(torch.equal(weights[name], value) for name, value in average(checkpoints(run)[-2:]).items())

    actual = evaluate(run, str(folder / "valid.txt"))
    assert actual.scores == {name: result[name] for name in ("loss", "perplexity", "tokens")}
    kind = AutoModelForCausalLM if objective == "causal" else AutoModelForMaskedLM
    assert type(kind.from_pretrained(run / "model")) is type(load_run(run, "cpu")[0])


def test_every_token_of_a_text_is_counted_once(causal: Path, folder: Path) -> None:
    _, tokenizer, config = load_run(causal, "cpu")
    texts = read_documents(str(folder / "valid.txt"), config.data.documents)
    expected = sum(len(tokenizer(line).input_ids) for text in texts for line in text)
    assert read(causal / "result.json")["tokens"] == expected
    for window, stride in ((8, 1), (24, 12), (500, None)):
        assert (
            evaluate(causal, str(folder / "valid.txt"), window=window, stride=stride).scores["tokens"]
            == expected
        )


def test_the_tokens_of_a_step_are_those_that_are_predicted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    plain = LanguageModelTrainer.training_step

    def step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        counted.append((int((inputs["labels"] != -100).sum()), int(num_items_in_batch)))
        return plain(self, model, inputs, num_items_in_batch)

    monkeypatch.setattr(LanguageModelTrainer, "training_step", step)
    by_epoch = {"max_steps": None, "num_train_epochs": 1, "save_strategy": "epoch", "save_steps": None}
    config = settings(folder, "counted", training=by_epoch)
    run = train(config)
    assert all(labels == items for labels, items in counted)
    _, tokenizer, _ = load_run(run, "cpu")
    documents = encode_documents(tokenizer, read_documents(config.data.train, "blank line"))
    rows = Rows.of(documents, 24, begin=begin_id(tokenizer))
    parts = sum(len(row["parts"]) for row in rows)
    assert sum(labels for labels, _ in counted) == rows.tokens - parts


LINE = "the river runs to a far grey sea"


def learn_by_heart(folder: Path, **parts: Any) -> Path:
    """Train a model until it knows a text of one line that is repeated."""
    for name in ("train", "valid"):
        (folder / f"{name}.txt").write_text(f"{LINE}\n" * 40, encoding="utf-8")
    steps = parts.pop("steps", 40)
    parts["training"] = {"max_steps": steps, "eval_steps": steps, "save_steps": steps, "average_last": 1}
    changes = SIZES | {"num_hidden_layers": 1, "norm_first": True, "dropout": 0.0}
    parts["model"] = {"position": "floater_relative", "changes": changes}
    return train(settings(folder, **parts))


@pytest.mark.parametrize(
    "data",
    [{"documents": "line"}, {"documents": "file"}, {"full_sentences": True}, {"memory": 24, "block": 12}],
    ids=["line", "file", "full_sentences", "memory"],
)
def test_the_pipeline_of_transformers_continues_a_line_to_its_end(
    data: dict[str, Any], tmp_path: Path
) -> None:
    run = learn_by_heart(tmp_path, data=data)
    write = pipeline("text-generation", str(run / "model"), do_sample=False)
    assert write("the river runs", max_new_tokens=16)[0]["generated_text"] == LINE
    trained, prompts = (load_bpe(run / name)("the <s> river") for name in ("vocabulary", "model"))
    assert prompts.data == trained.data, "an evaluation reads texts as the training did"


def fine_tune(run: Path, name: str) -> Path:
    """Train a run's model for one more step as a checkpoint."""
    source = {"train": str(run.parent / "train.txt"), "valid": str(run.parent / "valid.txt"), "block": 24}
    training = {"max_steps": 1, "learning_rate": 1e-6, "max_tokens": 192, "average_last": 1}
    tree = {
        "run": str(run.parent / name),
        "data": source | {"documents": "line"},
        "model": {"path": str(run)},
        "training": training,
    }
    chosen = task(name)
    return chosen.train(make(chosen.Settings, tree, name))


def test_the_pipeline_of_transformers_fills_a_mask(tmp_path: Path) -> None:
    masking = {"mask": 1.0, "random": 0.0}
    run = learn_by_heart(tmp_path, objective="masked", data={"documents": "line"}, masking=masking, steps=100)
    for each in (run, fine_tune(run, "masked_lm")):
        fill = pipeline("fill-mask", str(each / "model"))
        best, *_ = fill("the river <mask> to a far grey sea")
        assert (best["token_str"].strip(), best["sequence"]) == ("runs", LINE)
    text = "the <mask> river"
    assert load_bpe(run / "model")(text).data == load_bpe(run / "vocabulary")(text).data


def test_the_pipeline_of_transformers_continues_with_a_model_that_was_fine_tuned(tmp_path: Path) -> None:
    run = fine_tune(learn_by_heart(tmp_path, data={"documents": "line"}), "causal_lm")
    write = pipeline("text-generation", str(run / "model"), do_sample=False)
    assert write("the river runs", max_new_tokens=16)[0]["generated_text"] == LINE


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_a_run_that_goes_on_from_within_an_epoch_ends_as_a_whole_one(
    objective: str, folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole: Path = request.getfixturevalue(objective)
    epochs = [entry["epoch"] for entry in read(whole / "log.json") if entry["step"] in (4, 12)]
    assert epochs[0] % 1 != 0
    assert epochs[-1] > 1, "masks change with the epoch"
    run = Path(shutil.copytree(whole, tmp_path / objective))
    for name in ("model", "checkpoint-8", "checkpoint-12"):
        shutil.rmtree(run / name)
    train(replace(load(LanguageModelingSettings, run / "config.yaml"), run=str(run)))
    resumed, weights = (load_file(path / "model" / "model.safetensors") for path in (run, whole))
    assert all(torch.equal(resumed[name], value) for name, value in weights.items())


@pytest.mark.parametrize(
    "parts",
    [
        {"model": {"position": "rnn_transformer"}, "data": {"pack": False}},
        {"model": {"position": "learned"}, "data": {"documents": "file", "block": 32}},
        {"model": {"position": "tupe_r"}, "objective": "masked", "data": {"documents": "line"}},
        {"training": {"average_last": 0, "eval_steps": 4, "early_stopping_patience": 1}},
    ],
    ids=["rnn_transformer", "learned", "tupe_r", "best"],
)
def test_other_models_and_other_documents(folder: Path, parts: dict[str, Any], tmp_path: Path) -> None:
    write_texts(tmp_path)
    parts["training"] = {"max_steps": 4} | parts.get("training", {})
    assert read(train(settings(tmp_path, **parts)) / "result.json")["steps"] == 4


Says = Callable[..., str]


@pytest.fixture
def fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> Says:
    """Run a command that a person has got wrong: one line, exit code 2, nothing written."""

    def run(*arguments: str) -> str:
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        capsys.readouterr()
        assert main(arguments) == 2
        said = capsys.readouterr()
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
        assert said.out == ""
        *told, last = said.err.splitlines()
        assert all("training documents" in line or "cut" in line for line in told)
        return last.removeprefix("floater: ")

    return run


def test_bad_input_is_named(fails: Says, folder: Path, ahead: str) -> None:
    (folder / "latin.txt").write_bytes(b"one\ncaf\xe9\n")
    (folder / "blank.txt").write_text("\n\n")
    config = str(write_config(folder, "new"))

    def said(*overrides: str) -> str:
        return fails("train", config, *overrides)

    assert said("data.train=none.txt") == "none.txt: cannot be read (No such file or directory)"
    assert said(f"data.train={folder}/latin.txt").startswith(f"{folder}/latin.txt, line 2: not UTF-8")
    assert said(f"data.valid={folder}/blank.txt") == f"empty corpus: no text in {folder}/blank.txt"
    assert "did you mean 'data.block'?" in said("data.blok=3")
    assert "did you mean 'rotary'?" in said("model.position=rotry")
    assert "unknown task 'language_model'; did you mean 'language_modeling'?" in said("task=language_model")
    learned = said("model.position=learned", "data.block=64")
    assert "'learned' has 32 positions, but data.block is 64; raise model.max_length" in learned
    window = said("model.position=learned", "evaluation.window=40")
    assert "'learned' has 32 positions, but evaluation.window is 40" in window
    assert "data.block is 400, more than a batch, training.max_tokens 192" in said("data.block=400")
    assert "stride is 24; it must be below the window, 24" in said("evaluation.stride=24")
    assert "block is 7; it must be at least 8" in said("data.block=7")
    assert "'objective' must be one of 'causal', 'masked'" in said("objective=prefix")
    assert "must be at most 1" in said("masking.mask=0.95")
    assert "'ahead' lets tokens attend to later ones" in said(f"model.position={ahead}", "data.pack=false")
    assert "one document a row" in said("model.position=rnn_transformer")
    near = said("model.times={mode: stretch, max_scale: 2}", "model.max_length=8", "data.documents=file")
    assert re.search("a text of 2[0-9] tokens does not fit below the horizon of random times, 16", near)


def test_lower_case_is_that_of_the_vocabulary(
    fails: Says, causal: Path, folder: Path, tmp_path: Path
) -> None:
    config = str(write_config(folder, "lower", data={"lowercase": True, "vocabulary": str(causal)}))
    kept = fails("train", config)
    assert kept.startswith(f"data.lowercase is true, but the vocabulary {causal} keeps upper case")
    lower = tmp_path / "lower"
    train_bpe(["the river"], 270, lowercase=True).save_pretrained(lower)
    assert main(["train", config, f"data.vocabulary={lower}", f"run={tmp_path}/run"]) == 0


def test_evaluating_prints_perplexity_tokens_and_seconds(
    causal: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(causal), "--source", str(folder / "valid.txt"), "--window", "16"]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"perplexity \d+\.\d{3} \(loss \d\.\d{4} nats a token\)", first)
    assert re.fullmatch(r"tokens     \d+", second)
    assert re.fullmatch(r"seconds    \d+\.\d", third)


def test_an_evaluation_that_cannot_be_is_refused(fails: Says, causal: Path, folder: Path) -> None:
    source = ["--source", str(folder / "valid.txt")]
    asked = fails("evaluate", str(causal), *source, "--reference", "x")
    refused = f"{causal} is a run of task 'language_modeling', which takes no --reference; it takes"
    assert asked.startswith(refused)
    assert fails("evaluate", "none", *source) == "none: there is no such directory"
    asked = fails("evaluate", str(causal / "model"), *source)
    assert asked.endswith(f"model holds no run (no config.yaml); name the run, {causal}")
    assert "stride is 16; it must be below the window, 16" in fails(
        "evaluate", str(causal), *source, "--window", "16", "--stride", "16"
    )
    assert "window is 3; it must be at least 8" in fails("evaluate", str(causal), *source, "--window", "3")
    assert "stride is 0; it must be positive" in fails("evaluate", str(causal), *source, "--stride", "0")
    assert "none.txt: cannot be read" in fails("evaluate", str(causal), "--source", "none.txt")
    assert "only one of 'translation' translates" in fails("translate", str(causal), *source)
    other = str(write_config(folder, "causal", objective="masked", model={"position": "floater"}))
    assert 'objective is "causal" there and "masked" here' in fails("train", other)
