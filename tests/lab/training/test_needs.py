"""Estimated needs equal what a training takes; a run with too little room is refused before it begins."""

import logging
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from floater.errors import DataError
from floater.lab.settings import SettingsError
from floater.lab.study.grid import grid
from floater.lab.study.needs import check_disk, disk_of
from floater.lab.study.run import study
from floater.lab.tasks import task
from floater.lab.training.needs import Needs, needs_of
from floater.lab.training.run import MODEL
from floater.lab.training.settings import TrainingSettings
from lab.study.small import run_inline
from lab.study.small import settings as study_settings
from lab.tasks.language_modeling import small as language_modeling
from lab.tasks.translation import small as translation

Usage = namedtuple("Usage", "total used free")
BESIDES = 100_000  # bytes: tokenizer, states of random numbers and of the Trainer, headers


def fill(monkeypatch: pytest.MonkeyPatch, free: float) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(1e15, 1e15 - free, free))


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_run_takes_the_bytes_of_the_estimate(tmp_path: Path) -> None:
    language_modeling.write_texts(tmp_path)
    settings = language_modeling.settings(tmp_path, "run", training={"save_total_limit": 2})
    lm = task("language_modeling")
    run = lm.train(settings)
    model, *_ = lm.load(run)
    needs = needs_of(model, settings.training)
    last = run / "checkpoint-12"
    assert needs.model <= bytes_in(run / MODEL) <= needs.model + BESIDES
    assert needs.checkpoint <= bytes_in(last) <= needs.checkpoint + 2 * BESIDES
    assert needs.checkpoints == len([*run.glob("checkpoint-*")]) + 1
    assert needs.state == 16 * sum(p.numel() for p in model.parameters())


def test_frozen_parameters_have_no_gradient_and_no_moments() -> None:
    model = torch.nn.ModuleList([torch.nn.Linear(9, 9), torch.nn.Linear(9, 9)])
    model[0].requires_grad_(False)
    needs = needs_of(model, TrainingSettings())
    assert (needs.model, needs.checkpoint, needs.state) == (4 * 180, 4 * (180 + 180), 4 * (180 + 90 + 180))


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "floater", "tupe_r"])
def test_an_empty_model_has_the_parameters_of_the_trained_one(position: str, tmp_path: Path) -> None:
    files = translation.write_corpus(tmp_path)
    parts = {"model": {"position": position, "changes": translation.SIZES}, "training": {"max_steps": 4}}
    settings = translation.settings(tmp_path, files, "run", **parts)
    state = torch.random.get_rng_state()
    empty = translation.TASK.empty(settings)
    assert torch.equal(torch.random.get_rng_state(), state)
    tokenizer = translation.TASK.make_processor(settings, translation.pairs(files["train"]))
    assert len(tokenizer) == settings.data.vocabulary_size
    built = translation.TASK.build(settings, tokenizer, None)
    assert [p.shape for p in empty.parameters()] == [p.shape for p in built.parameters()]


def test_a_full_disk_is_refused_before_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    language_modeling.write_texts(tmp_path)
    settings = language_modeling.settings(tmp_path)
    fill(monkeypatch, 1e6)
    with pytest.raises(
        DataError, match=r"will take 1.* MB \(up to 4 checkpoints .* 1 MB are free: keep fewer"
    ):
        task("language_modeling").train(settings)
    assert not [*Path(settings.run).glob("checkpoint-*")]


def test_a_run_says_what_it_will_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    language_modeling.write_texts(tmp_path)
    with caplog.at_level(logging.INFO):
        task("language_modeling").train(language_modeling.settings(tmp_path))
    assert "will write up to" in caplog.text


def test_a_model_beyond_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floater.lab.training.needs._memory", lambda: (10**5, "the GPU"))
    language_modeling.write_texts(tmp_path)
    with pytest.raises(DataError, match=r"take .* of memory, and the GPU has 0\.1 MB"):
        task("language_modeling").train(language_modeling.settings(tmp_path))


def test_a_study_needs_what_its_finished_trials_keep_and_a_running_one_has(tmp_path: Path) -> None:
    settings = study_settings(tmp_path)
    trials = grid(settings, "here")
    chosen = trials.trials[0].settings
    size = sum(p.numel() for p in task("translation").empty(chosen).parameters())
    needs = Needs.of(size, size, chosen.training)
    whole, unknown = disk_of(trials, trials.trials, 1)
    assert unknown == 0
    assert whole == 4 * needs.model + (4 * 2 + 1) * needs.checkpoint  # one more while it is written
    sparing = grid(study_settings(tmp_path, keep_checkpoints=False), "here")
    assert disk_of(sparing, sparing.trials, 2)[0] == 4 * needs.model + 2 * 3 * needs.checkpoint
    assert "they will write up to" in check_disk(trials, trials.trials, 1)


def test_a_study_needs_room_for_the_best_models_of_some_variants(tmp_path: Path) -> None:
    kept = {"settings": {"training": {"keep_best": True, "average_last": 2}}}
    plain = {"settings": {"training": {"average_last": 2}}}
    orders = [{"a": plain, "b": kept}, {"b": kept, "a": plain}]
    entries = {name: {"position": "sinusoidal"} for name in "ab"}
    several = [{name: entries[name] | order[name] for name in order} for order in orders]
    trials = [grid(study_settings(tmp_path, models=models, seeds=[1]), "here") for models in several]
    one, other = (disk_of(each, each.trials, 1)[0] for each in trials)
    assert one == other


def test_a_study_of_generated_problems_knows_its_models(tmp_path: Path) -> None:
    tree = {"task": "generated", "short_to_long": {}, "models": {"alibi": None, "learned": None}}
    tree["settings"] = {"data": {"problem": "parity"}, "model": {"preset": "tiny", "max_length": 600}}
    trials = grid(study_settings(tmp_path, **tree), "here")
    chosen = [trial.settings for trial in trials.trials[:2]]
    generated = task("generated")
    built = [generated.build(each, generated.make_processor(each, None), None) for each in chosen]
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in built]
    assert sizes == [sum(p.numel() for p in generated.empty(each).parameters()) for each in chosen]
    assert disk_of(trials, trials.trials, 1)[1] == 0


def test_a_study_whose_models_are_unknown_does_not_say_that_it_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = grid(study_settings(tmp_path), "here")
    monkeypatch.setattr("floater.lab.study.needs._needs", lambda *_: None)
    line = check_disk(trials, trials.trials, 1)
    assert line.startswith("what they will write is unknown before their data are read (")


def test_a_study_beyond_the_disk_is_refused_before_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = run_inline(monkeypatch)
    fill(monkeypatch, 1e6)
    refusal = r"4 trials will take .* MB, and 1 MB are free: set keep_checkpoints: false"
    with pytest.raises(DataError, match=refusal):
        study(study_settings(tmp_path / "study"))
    assert launched.started == []


def test_a_study_without_what_a_later_trial_needs_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a text\n", encoding="utf-8")
    checkpoint = Path(__file__).parent
    tree = {
        "task": "masked_lm",
        "settings": {
            "data": {"train": str(text), "valid": str(text)},
            "model": {"path": str(checkpoint)},
        },
        "models": {"plain": {}, "flow": {"settings": {"plug": {"flow": str(tmp_path / "runs" / "flow")}}}},
        "short_to_long": {},
        "figures": [],
    }
    with pytest.raises(SettingsError, match=r"trial flow-1: .*runs/flow: there is no such directory"):
        grid(study_settings(tmp_path / "study", **tree), "here")
    tree["models"] = {"plain": {"settings": {"model": {"path": str(tmp_path / "no" / "run")}}}}
    with pytest.raises(SettingsError, match=r"trial plain-1: .*no/run: there is no such directory"):
        grid(study_settings(tmp_path / "study", **tree), "here")
