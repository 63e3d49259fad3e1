"""A study that is run again: more seeds, other files, failed or killed trials, warm starts."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.settings import SettingsError, dump
from floater.lab.study import run
from floater.lab.study.results import Outcome
from floater.lab.study.trial import is_finished
from floater.lab.tasks import task
from floater.lab.tasks.measurement import Measurement
from floater.lab.tasks.translation import decode
from floater.lab.training.lengthen import lengthen
from processes import in_process

from .small import ONE_STEP, SMALL_MODEL, run_inline, scores, settings

MARGIN = decode.MARGIN
pytestmark = pytest.mark.usefixtures("short_translations")


def test_one_more_seed_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = run_inline(monkeypatch, report=False)
    small = {"models": {"none": {}}, "short_to_long": {"builtin": 20, "builtin_test": 1}}
    run.study(settings(tmp_path, seeds=[1], **small))
    run.study(settings(tmp_path, seeds=[1, 7], **small))
    assert started.started == ["none-1", "none-7"]


def test_a_report_says_which_trials_are_not_scored_on_a_new_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started = run_inline(monkeypatch, report=False)
    small = {"models": {"none": {}}, "short_to_long": {"builtin": 20, "builtin_test": 1}, "seeds": [1]}
    run.study(settings(tmp_path / "study", **small))
    run.study(settings(tmp_path / "study", **small), train=False)
    assert "not scored" not in caplog.text
    text = tmp_path / "text"
    text.write_text("1 July\n", encoding="utf-8")
    tests = {"more": {"source": str(text), "reference": str(text)}}
    run.study(settings(tmp_path / "study", tests=tests, **small), train=False)
    assert "1 of 1 trials are trained, but not scored on the tests as these are now" in caplog.text
    text.with_name("two").write_text("1 July\n2 July\n", encoding="utf-8")
    tests["more"]["reference"] = str(text.with_name("two"))
    with pytest.raises(SettingsError, match=r"trial none-1: test more: .* not aligned: 1 and 2 lines"):
        run.study(settings(tmp_path / "study", tests=tests, **small))
    assert started.started == ["none-1"]  # the new test is checked before a trial starts


def test_damaged_scores_are_named_and_once_removed_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = run_inline(monkeypatch, report=False)
    small = {"models": {"none": {}}, "short_to_long": {"builtin": 20, "builtin_test": 1}, "seeds": [1]}
    before = run.study(settings(tmp_path, **small)).outcomes[0].measured["lengths"].statistics
    file = tmp_path / "trials/none-1/measured/lengths.npz"
    file.write_bytes(b"no archive")
    for _ in range(2):
        with pytest.raises(
            DataError, match=r"lengths\.npz holds no scores .*: it is no NumPy archive; remove it"
        ):
            run.study(settings(tmp_path, **small))
    file.unlink()
    after = run.study(settings(tmp_path, **small)).outcomes[0].measured["lengths"].statistics
    assert {name: rows.tolist() for name, rows in after.items()} == {
        name: rows.tolist() for name, rows in before.items()
    }
    assert started.started == ["none-1", "none-1"]


def test_finished_trials_keep_their_checkpoints_or_only_those_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = run_inline(monkeypatch, report=False)
    small = {"models": {"none": {}}, "short_to_long": {"builtin": 20, "builtin_test": 1}, "seeds": [1]}
    kept: dict[str, list[str]] = {}
    for name, keep in (("all", True), ("few", False)):
        asked = settings(tmp_path / name, keep_checkpoints=keep, **small)
        asked.settings["training"]["keep_steps"] = [2]
        run.study(asked)
        kept[name] = sorted(path.name for path in (tmp_path / name / "trials/none-1").glob("checkpoint-*"))
        run.study(asked)
    assert kept == {"all": ["checkpoint-2", "checkpoint-4"], "few": ["checkpoint-2"]}
    assert started.started == ["none-1", "none-1"]  # what has no checkpoints is finished, too


def test_models_without_weights_are_finished_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = run_inline(monkeypatch)
    small = {"models": {"none": {}}, "short_to_long": {"builtin": 20, "builtin_test": 1}, "seeds": [1]}
    small |= {"figures": [], "keep_checkpoints": False}
    whole = run.study(settings(tmp_path / "whole", **small))
    asked = settings(tmp_path / "few", keep_models=False, **small)
    for _ in range(2):
        few = run.study(asked)
        assert few.outcomes[0].measured["lengths"].scores == whole.outcomes[0].measured["lengths"].scores
    assert started.started == ["none-1", "none-1"]
    kept = {path.name for path in (tmp_path / "few/trials/none-1/model").iterdir()}
    assert "config.json" in kept
    assert not any(name.endswith(".safetensors") for name in kept)
    for changes, why in (
        ({"figures": ["vectors"]}, "figures are drawn of them"),
        ({"models": {"none": {}, "x": {"position": "none", "start": "none"}}}, "'x' starts from one"),
        ({"keep_checkpoints": True}, "keep_checkpoints is true"),
    ):
        with pytest.raises(SettingsError, match=f"keep_models is false, but {why}"):
            settings(tmp_path / "none", **small | {"keep_models": False} | changes)


def test_files_that_changed_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text"
    text.write_text("so it is a b c\n" * 40, encoding="utf-8")
    common = {
        "objective": "masked",
        "data": {"train": str(text), "valid": str(text), "block": 16, "vocabulary_size": 280},
        "model": SMALL_MODEL,
        "training": ONE_STEP,
    }
    source = tmp_path / "test"
    source.write_text("so it is\n" * 20, encoding="utf-8")
    asked = settings(
        tmp_path / "study",
        task="language_modeling",
        settings=common,
        models={"none": {}},
        seeds=[1],
        short_to_long={},
        tests={"other": {"source": str(source)}},
    )
    run_inline(monkeypatch, report=False)
    first = run.study(asked).outcomes[0].measured["other"]
    source.write_text("c b a is it\n" * 20, encoding="utf-8")
    second = run.study(asked).outcomes[0].measured["other"]
    assert first.score("loss") != second.score("loss")
    good = run.study(asked)
    more = replace(asked, tests=asked.tests | {"bad": asked.tests["other"] | {"window": 16}})
    with monkeypatch.context() as broken:
        language, measure = task("language_modeling"), task("language_modeling").measure

        @functools.wraps(measure)
        def fails(run: str, source: str, window: int | None = None, stride: int | None = None) -> Measurement:
            return measure(run, source, 1 // 0 if window else None, stride)

        broken.setattr(language, "measure", fails)
        (outcome,) = run.study(more).outcomes
    assert (outcome.status, outcome.error) == (
        "failed",
        "ZeroDivisionError: integer division or modulo by zero",
    )
    assert outcome.measured.keys() == {"other"}, "one test set that fails does not hide the others"
    assert outcome.measured["other"].score("loss") == good.outcomes[0].measured["other"].score("loss")
    text.unlink()
    assert run.study(asked, train=False).outcomes[0].status == "finished"
    text.write_text("a b c\n" * 40, encoding="utf-8")
    changed = (
        r"trial none-1: since its training began, data\.train: .* has changed \(40 lines as before\); delete "
        r".*none-1, or"
    )
    with pytest.raises(SettingsError, match=changed):
        run.study(asked)
    (tmp_path / "study" / "trials" / "none-1" / "cost.json").unlink()  # it was stopped, and would go on
    with pytest.raises(SettingsError, match=changed):
        run.study(asked)


def test_a_trial_that_was_trained_for_longer_is_scored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_inline(monkeypatch, report=False)
    common = settings(tmp_path).settings
    common["training"] |= {"max_steps": 2, "eval_steps": 2}
    small = {"models": {"none": {}}, "seeds": [1], "short_to_long": {"builtin": 20, "builtin_test": 1}}

    def studied() -> Outcome:
        (outcome,) = run.study(settings(tmp_path / "study", settings=common, **small)).outcomes
        return outcome

    before = studied()
    common["training"]["max_steps"] = 4
    longer, shorter = lengthen(before.trial.settings, steps=4)
    task("translation").train(longer, shorter=shorter)
    assert not is_finished(before.trial.run, {}), "its costs are not those of the whole training"
    monkeypatch.setattr("floater.lab.study.trial.software", lambda: {"commit": "later"})
    after = studied()
    assert (after.status, after.cost["commit"]) == ("finished", "later")
    assert (before.result["steps"], after.result["steps"]) == (2, 4)
    assert before.measured["lengths"].score("loss") != after.measured["lengths"].score("loss")


def test_a_trial_goes_on_from_one_that_is_trained_and_fails_a_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_inline(monkeypatch, report=False)
    small = {
        "models": {"sinusoidal": {}, "floater": {"start": "sinusoidal"}},
        "seeds": [1],
        "short_to_long": {"builtin": 20, "builtin_test": 1},
    }
    run.study(settings(tmp_path / "study", **small))
    for name in ("t.en", "t.de"):
        (tmp_path / name).write_text("a b\n" * 3, encoding="utf-8")

    translation, measure = task("translation"), task("translation").measure

    @functools.wraps(measure)
    def fails(run: Path, *args: Any, **kwargs: Any) -> Measurement:
        return measure(run, *args, **kwargs) if "floater" in str(run) else 1 // 0

    monkeypatch.setattr(translation, "measure", fails)
    test = {"source": str(tmp_path / "t.en"), "reference": str(tmp_path / "t.de")}
    actual = run.study(settings(tmp_path / "study", tests={"t": test}, **small))
    assert [(o.status, sorted(o.measured)) for o in actual.outcomes] == [
        ("failed", ["lengths"]),
        ("finished", ["lengths", "t"]),
    ]


def test_a_trial_that_a_test_set_fails_in_tokens_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One word is longer than the learned positions, which only the vocabulary of the trial shows."""
    started = run_inline(monkeypatch, report=False)
    text, test = tmp_path / "text", tmp_path / "test"
    text.write_text("".join(f"a b {n}\n" for n in range(40)), encoding="utf-8")
    test.write_text("x" + "qz" * 40 + "\n", encoding="utf-8")
    common = settings(tmp_path).settings
    files = {f"{part}_{side}": str(text) for part in ("train", "valid") for side in ("source", "target")}
    common["data"] |= files
    small = {"models": {"learned": {"max_length": 64}, "none": {}}, "seeds": [1], "short_to_long": {}}
    tests = {"t": dict.fromkeys(("source", "reference"), str(test))}
    asked = settings(tmp_path / "study", settings=common, tests=tests, **small)
    for train in (True, True, False):
        learned, none = run.study(asked, train=train).outcomes
        assert (learned.status, none.status) == ("failed", "finished")
        assert "test t: 'learned' has 64 positions, but the longest line of" in learned.error
    assert started.started == ["learned-1", "none-1", "learned-1"]
    small["models"] = {"learned": {"max_length": 128}, "none": {}}
    with pytest.raises(SettingsError, match=r"64 there and 128 here; no step .* remove it to begin again"):
        run.study(settings(tmp_path / "study", settings=common, tests=tests, **small))


def test_a_trial_that_ends_without_a_word_is_a_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        slots = 1

        def start(self, chosen: object) -> Silent:
            return self

        def poll(self) -> int:
            return 1

        def stop(self) -> None: ...

    monkeypatch.setattr(run, "choose_launcher", lambda *_: Silent())
    small = {"models": {"none": {}}, "short_to_long": {"builtin": 20, "builtin_test": 1}}
    results = run.study(settings(tmp_path, seeds=[1], **small))
    assert [(o.status, o.error[:26]) for o in results.outcomes] == [("failed", "it ended without a message")]
    results.outcomes[0].trial.error.write_text("of an earlier start", encoding="utf-8")
    results = run.study(settings(tmp_path, seeds=[1], **small))
    assert results.outcomes[0].error.startswith("it ended without a message")


def study_until_killed(config: str, trial: Path) -> int:
    """Run a study in this process, which kills itself at the first checkpoint of a trial."""

    def kill() -> None:
        while not list(trial.glob("checkpoint-*")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    return main(["study", config])


@pytest.mark.slow
def test_a_killed_study_goes_on_and_has_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle of training, with real processes; its trials end with it."""
    common = settings(tmp_path).settings
    common["training"] |= {"max_steps": 24, "save_steps": 3, "eval_steps": 12}
    small = {"models": {"none": {}}, "seeds": [1], "short_to_long": {"builtin": 40, "builtin_test": 2}}
    whole, killed = (settings(tmp_path / name, settings=common, **small) for name in ("whole", "killed"))
    with monkeypatch.context() as here:
        run_inline(here)
        here.setattr(decode, "MARGIN", MARGIN)  # as in the processes of the other
        run.study(whole)
    config, trial = tmp_path / "killed.yaml", tmp_path / "killed" / "trials" / "none-1"
    config.write_text(dump(killed), encoding="utf-8")
    said = tmp_path / "said.txt"
    assert in_process(study_until_killed, str(config), trial, said=said) == -signal.SIGKILL, said.read_text()
    assert not (trial / "model").exists()
    assert main(["study", str(config)]) == 0
    assert scores(tmp_path / "killed") == scores(tmp_path / "whole")
    logs = [json.loads((tmp_path / n / "trials/none-1/log.json").read_text()) for n in ("whole", "killed")]
    losses = [[entry["loss"] for entry in log if "loss" in entry] for log in logs]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_a_warm_start_waits_for_the_trial_that_it_starts_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    models = {"sinusoidal": {}, "floater": {"start": "sinusoidal"}}
    common = settings(tmp_path).settings
    started = run_inline(monkeypatch, report=False)
    asked = settings(tmp_path, models=models, seeds=[1], settings=common)
    results = run.study(asked)
    assert started.started == ["sinusoidal-1", "floater-1"]
    assert [outcome.status for outcome in results.outcomes] == ["finished", "finished"]

    shutil.rmtree(tmp_path / "trials" / "sinusoidal-1")
    with pytest.raises(
        SettingsError,
        match=r"trial floater-1: since its training began, training\.warm_start: .*sinusoidal-1 is missing",
    ):
        run.study(asked)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    common["data"] = {"vocabulary": str(tmp_path / "broken")}
    other = settings(tmp_path / "other", models=models, seeds=[1], settings=common)
    caplog.set_level("INFO", "floater")
    failed = run.study(other)
    assert "starts from sinusoidal-1, which failed" in failed.outcomes[1].error
    assert started.started == ["sinusoidal-1", "floater-1", "sinusoidal-1"]
    assert any(text.startswith("sinusoidal-1: failed: ") for text in caplog.messages)
