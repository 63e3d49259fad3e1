"""A study as a whole: run, failed, killed, gone on."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from floater.cli import main
from floater.errors import DataError
from floater.settings import SettingsError, dump
from floater.study import launch, local_launcher, run
from floater.study.grid import grid
from floater.study.launch import run_trials
from floater.study.local_launcher import LocalLauncher
from floater.study.results import VALIDATION, Column, Results
from floater.study.settings import Budget, ShortToLong
from floater.study.trial import is_finished, read, software
from floater.tasks import task
from floater.tasks.measurement import Measurement
from floater.tasks.translation import decode
from floater.training.lock import locked
from processes import in_process

from .small import run_inline, settings

MARGIN = decode.MARGIN


@pytest.fixture(autouse=True)
def short_translations(monkeypatch: pytest.MonkeyPatch) -> None:
    """An untrained model does not end its sentences."""
    monkeypatch.setattr(decode, "MARGIN", 3)


def scores(folder: Path) -> str:
    return (folder / "scores.csv").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore::floater.tasks.translation.CutTranslation")
def test_each_row_has_the_scores_of_its_seeds(finished: Results) -> None:
    """The numbers are those of `floater evaluate` on the same run."""
    variant = next(variant for variant in finished.grid.variants if variant.name == "learned-input")
    column = Column("lengths", "chrf", 80, 100)
    value = finished.value(variant, column)
    assert value is not None
    test = finished.grid.tests["lengths"]
    assert len(value.scores) == 2
    for seed, score in zip((1, 2), value.scores, strict=True):
        run_ = Path(finished.settings.folder) / "trials" / f"{variant.name}-{seed}"
        found = task("translation").evaluate(run_, test["source"], reference=test["reference"])
        lengths = read(run_, "lengths").lengths
        chosen = [line for line, length in zip(found.lines, lengths, strict=True) if 80 <= length < 100]
        written = (run_ / "measured" / "lengths.txt").read_text(encoding="utf-8").splitlines()
        assert [line for line, n in zip(written, lengths, strict=True) if 80 <= n < 100] == chosen
        assert finished.count(column) == len(chosen) == 3
        assert score == pytest.approx(read(run_, "lengths").score("chrf", (lengths >= 80) & (lengths < 100)))


def test_a_failed_trial_says_why_and_the_rest_goes_on(finished: Results) -> None:
    states = {outcome.trial.name: (outcome.status, outcome.error) for outcome in finished.outcomes}
    for seed in (1, 2):
        status, error = states.pop(f"broken-{seed}")
        assert status == "failed"
        assert error.startswith("a training pair, line 22 of ")
        assert "more than training.max_tokens, 30" in error
    assert {status for status, _ in states.values()} == {"finished"}


def test_less_of_a_likelihoods_negative_logarithm_is_better() -> None:
    better = {"nll": False, "loss": False, "accuracy": True, "exact": True, "bleu": True}
    assert {name: Column(VALIDATION, name).greater for name in better} == better


def test_a_test_set_of_lengths_without_bins_is_shown_whole(finished: Results) -> None:
    asked = replace(finished.settings, bins=[], short_to_long=ShortToLong())
    assert Results(asked, finished.grid, finished.outcomes).columns() == [Column("lengths", "bleu")]


def test_an_empty_bin_is_empty(finished: Results) -> None:
    empty = Column("lengths", "bleu", 900, 1000)
    assert finished.count(empty) == 0
    assert all(finished.value(variant, empty) is None for variant in finished.grid.variants)
    lines = [line.split(",") for line in scores(Path(finished.settings.folder)).splitlines()]
    assert {tuple(line[6:]) for line in lines if line[4:6] == ["900", "1000"]} == {("0", "")}


def test_finished_trials_are_not_run_again(finished: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(finished.settings.folder)
    started = run_inline(monkeypatch)
    before = {path: path.stat().st_mtime_ns for path in (folder / "trials" / "none-1").rglob("*")}
    table = scores(folder)
    again = run.study(finished.settings, "small.yaml")
    assert started.started == [o.trial.name for o in again.outcomes if o.status == "failed"]
    assert {path: path.stat().st_mtime_ns for path in (folder / "trials" / "none-1").rglob("*")} == before
    assert scores(folder) == table


def test_one_more_seed_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = run_inline(monkeypatch, report=False)
    small = {"models": {"none": {}}, "short_to_long": {"builtin": 20, "builtin_test": 1}}
    run.study(settings(tmp_path, seeds=[1], **small))
    run.study(settings(tmp_path, seeds=[1, 7], **small))
    assert started.started == ["none-1", "none-7"]


def test_files_that_changed_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text"
    text.write_text("so it is a b c\n" * 40, encoding="utf-8")
    common = {
        "objective": "masked",
        "data": {"train": str(text), "valid": str(text), "block": 16, "vocabulary_size": 280},
        "model": settings(tmp_path).settings["model"],
        "training": {
            "max_steps": 1,
            "eval_steps": 1,
            "save_steps": 1,
            "save_total_limit": 1,
            "average_last": 0,
        },
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
    changed = r"trial none-1: data\.train has changed since its training began; delete .*none-1, or"
    with pytest.raises(SettingsError, match=changed):
        run.study(asked)
    (tmp_path / "study" / "trials" / "none-1" / "cost.json").unlink()  # it was stopped, and would go on
    with pytest.raises(SettingsError, match=changed):
        run.study(asked)


def test_windows_of_a_causal_model_are_scored_by_what_was_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text"
    text.write_text("so it is a b c\n" * 60, encoding="utf-8")
    files = {"train": str(text), "valid": str(text), "documents": "file"}
    common = {
        "data": files | {"block": 16, "vocabulary_size": 280},
        "model": settings(tmp_path).settings["model"],
        "training": {
            "max_steps": 1,
            "eval_steps": 1,
            "save_steps": 1,
            "save_total_limit": 1,
            "average_last": 0,
        },
    }
    asked = settings(
        tmp_path / "study",
        task="language_modeling",
        settings=common,
        seeds=[1],
        short_to_long={},
        tests={"near": {"source": str(text)}, "far": {"source": str(text), "window": 64}},
        bins=[16, 32],
    )
    run_inline(monkeypatch)
    found = run.study(asked)
    places = [(column.test, column.metric, column.bin_label) for column in found.columns(None)]
    far = [(metric, bin) for metric in ("loss", "excess") for bin in ("", "< 16", "16–31", "≥ 32")]
    assert places == [("near", "loss", ""), *(("far", metric, bin) for metric, bin in far)]
    assert found.lengths == "tokens read before"
    assert all(
        found.value(variant, column) for variant in found.grid.variants for column in found.columns(None)
    )
    page = (tmp_path / "study" / "table.md").read_text(encoding="utf-8")
    assert "loss beyond that of the training length" in page


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
    found = run.study(settings(tmp_path / "study", tests={"t": test}, **small))
    assert [(o.status, sorted(o.measured)) for o in found.outcomes] == [
        ("failed", ["lengths"]),
        ("finished", ["lengths", "t"]),
    ]


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

    monkeypatch.setattr(run, "launcher", lambda *_: Silent())
    small = {"models": {"none": {}}, "short_to_long": {"builtin": 20, "builtin_test": 1}}
    results = run.study(settings(tmp_path, seeds=[1], **small))
    assert [(o.status, o.error[:26]) for o in results.outcomes] == [("failed", "it ended without a word; s")]
    results.outcomes[0].trial.error.write_text("of an earlier start", encoding="utf-8")
    results = run.study(settings(tmp_path, seeds=[1], **small))
    assert results.outcomes[0].error.startswith("it ended without a word; s")


def study_until_killed(config: str, trial: Path) -> int:
    """Run a study in this process, which kills itself at the first checkpoint of a trial."""

    def kill() -> None:
        while not list(trial.glob("checkpoint-*")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    return main(["study", config])


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


def test_a_study_runs_once_at_a_time_and_is_reported_meanwhile(
    finished: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Results] = []
    monkeypatch.setattr(run, "write_report", lambda results, *_: reported.append(results))
    with locked(Path(finished.settings.folder)):
        with pytest.raises(DataError, match="is in use by process"):
            run.study(finished.settings)
        run.study(finished.settings, train=False)
    (seen,) = reported
    assert [o.status for o in seen.outcomes] == [o.status for o in finished.outcomes]


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
        SettingsError, match=r"trial floater-1: training\.warm_start has changed since its training began"
    ):
        run.study(asked)
    common["data"]["vocabulary"] = "no-such-vocabulary"
    other = settings(tmp_path / "other", models=models, seeds=[1], settings=common)
    caplog.set_level("INFO", "floater")
    failed = run.study(other)
    assert "starts from sinusoidal-1, which failed" in failed.outcomes[1].error
    assert started.started == ["sinusoidal-1", "floater-1", "sinusoidal-1"]
    assert any(text.startswith("sinusoidal-1: failed: ") for text in caplog.messages)


@pytest.mark.parametrize(
    ("budget", "slots"),
    [
        ({"cores": 8, "threads": 3, "memory": 100.0}, 2),
        ({"cores": 8, "memory": 5.0, "trial_memory": 2.0}, 2),
    ],
)
def test_the_budget_says_how_many_trials_run_at_a_time(budget: dict[str, float], slots: int) -> None:
    assert LocalLauncher(Budget(**budget)).slots == slots  # type: ignore[arg-type]


def test_trials_get_the_gpus_that_the_study_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    environments: list[str] = []
    monkeypatch.setattr(
        local_launcher,
        "TrialProcess",
        lambda trial, budget, given, **_: environments.append(given["CUDA_VISIBLE_DEVICES"]),
    )
    made = grid(settings(tmp_path), "here")
    made.write(threads=1)
    there = LocalLauncher(Budget(cores=8, memory=100.0, gpus=0.5))
    assert there.slots == 4
    for trial in made.trials:
        there.start(trial)
    assert environments == ["2", "5", "2", "5"]


def test_a_budget_without_room_for_a_trial_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2 cores.*no room for a trial of 1 threads, 1000.0 GiB"):
        LocalLauncher(Budget(cores=2, trial_memory=1000.0))


def test_trials_stay_within_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more at a time than there is room for, and as many as there is."""

    class Slow:
        def __init__(self) -> None:
            Slow.now += 1
            Slow.most = max(Slow.most, Slow.now)
            self.left = 3

        def poll(self) -> int | None:
            self.left -= 1
            if self.left > 0:
                return None
            Slow.now -= 1
            return 0

        def stop(self) -> None: ...

        now = most = 0

    class Places:
        slots = 3

        def start(self, trial: object) -> Slow:
            return Slow()

    monkeypatch.setattr(launch, "POLL", 0)
    made = grid(settings(tmp_path, seeds=[1, 2, 3, 4, 5]), "here")
    made.write(threads=1)
    run_trials(made, Places())
    assert (Slow.most, Slow.now) == (3, 0)


def test_a_trial_that_outgrows_its_memory_is_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = grid(settings(tmp_path, models={"none": {}}, seeds=[1]), "here")
    made.write(threads=1)
    with caplog.at_level("INFO", "floater"):
        run_trials(made, LocalLauncher(Budget(cores=1, trial_memory=0.05)))
    said = caplog.messages
    assert said == [f"none-1: failed: {made.trials[0].error.read_text(encoding='utf-8')} (1 of 1 trials)"]
    assert "budget.trial_memory is 0.05 GiB" in said[0]
    assert not is_finished(made.trials[0].run, made.tests)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["no-such.yaml"], "no-such.yaml"),
        (["CONFIG", "seeds=[]"], "at least one seed"),
        (["CONFIG", "models.sinusoidl={}"], "trial sinusoidl-1: unknown position model 'sinusoidl'"),
        (["CONFIG", "budget.core=2"], "did you mean 'budget.cores'?"),
        (["CONFIG", "launcher=ray"], "pip install 'floater[ray]'"),
        (["CONFIG", "budget.trial_memory=900000"], "no room for a trial"),
    ],
)
def test_what_a_person_did_wrong_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    named: str,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    config = tmp_path / "small.yaml"
    config.write_text(dump(settings(tmp_path / "study")), encoding="utf-8")
    assert main(["study", *(argument.replace("CONFIG", str(config)) for argument in arguments)]) == 2
    said = capsys.readouterr().err
    assert named.lower() in said.lower()
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "study" / "trials").exists()


def test_the_commit_is_that_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    here, flow = tmp_path / "floater" / "study" / "trial.py", tmp_path / "floater" / "flow.py"
    here.parent.mkdir(parents=True)
    here.write_text("one", encoding="utf-8")
    flow.write_text("one", encoding="utf-8")
    monkeypatch.setattr("floater.study.trial.__file__", str(here))
    assert software()["commit"] is None
    git("init")
    git("add", "floater/flow.py")
    git("commit", "-m", "of another project that it is installed in")
    assert software()["commit"] is None
    git("add", "floater")
    git("commit", "-m", "one")
    assert software()["commit"] == git("rev-parse", "--short", "HEAD")
    flow.write_text("two", encoding="utf-8")
    assert software()["commit"] == git("rev-parse", "--short", "HEAD") + "+"


def test_the_study_is_written_down_as_it_was_run(finished: Results) -> None:
    text = (Path(finished.settings.folder) / "study.yaml").read_text(encoding="utf-8")
    assert text.startswith(f"# floater study {finished.settings.folder}/study.yaml\n")
    assert yaml.safe_load(text)["bins"] == finished.settings.edges


def test_a_study_with_a_failed_trial_ends_with_code_1(
    finished: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, config = [finished], tmp_path / "small.yaml"
    config.write_text("models: {none: {}}\n", encoding="utf-8")
    monkeypatch.setattr(run, "from_config", lambda *_, **__: found[0])
    assert main(["study", str(config)]) == 1
    found[0] = replace(finished, outcomes=[o for o in finished.outcomes if o.status == "finished"])
    assert main(["study", str(config)]) == 0
