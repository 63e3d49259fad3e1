"""Studies that choose a label of an axis for each variant: by validation, before the other seeds run."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floater.lab.settings import SettingsError, make
from floater.lab.study import run, summary, trial
from floater.lab.study.grid import Grid, grid, planned, tuned
from floater.lab.study.report import _notes
from floater.lab.study.results import Outcome, Results
from floater.lab.study.settings import StudySettings
from floater.lab.study.tuning import Tried, best, tried, with_seeds
from floater.lab.study.variants import Variant
from floater.lab.tasks import task

from .made_up import LENGTHS, build_study
from .small import ONE_STEP, Inline, run_inline, scores, settings

RATES = {name: {"training": {"learning_rate": float(name)}} for name in ("1e-6", "1e-2")}
TUNED: dict[str, Any] = {"axes": {"rate": RATES}, "tuning": {"axis": "rate", "by": "loss"}}

pytestmark = pytest.mark.usefixtures("short_translations")


def names(trials: Grid) -> list[str]:
    return [trial.name for trial in trials.trials]


@pytest.mark.filterwarnings("ignore::floater.lab.tasks.translation.CutTranslation")
def test_each_model_is_trained_further_with_its_best_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = settings(tmp_path / "study", metric="loss", **TUNED)
    inline = run_inline(monkeypatch)
    caplog.set_level("INFO")
    results = run.study(asked)
    counts = [record.message for record in caplog.records if "trials" in record.message]
    assert counts[0].startswith("4 trials to run, then 2 with what these choose, ")
    assert [text.split("(")[-1] for text in counts if "finished (" in text] == [
        *(f"{count} of 6 trials)" for count in (1, 2, 3, 4)),
        *(f"{count} of 2 trials)" for count in (1, 2)),
    ]
    first = [f"{model}-{rate}-1" for model in ("none", "sinusoidal") for rate in RATES]
    assert inline.started == [*first, "none-1e-2-2", "sinusoidal-1e-2-2"]
    assert [variant.name for variant in results.grid.variants] == ["none-1e-2", "sinusoidal-1e-2"]
    losses = {
        name: json.loads((tmp_path / "study" / "trials" / name / "result.json").read_text())["loss"]
        for name in first
    }
    assert losses["none-1e-2-1"] < losses["none-1e-6-1"], "the small rate learns nothing in four steps"
    with (tmp_path / "study" / "tuning.csv").open(encoding="utf-8") as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    shown = [float(rows[model][rate]) for model in ("none", "sinusoidal") for rate in RATES]
    assert shown == [losses[name] for name in first]
    assert "1e-6" not in scores(tmp_path / "study"), "a label that was not chosen has no score on a test"
    assert {(each.variant, each.reference) for each in results.comparisons} == {
        ("sinusoidal-1e-2", "none-1e-2")
    }
    assert "No test set was read for the choice." in (tmp_path / "study" / "report.html").read_text()
    run.study(asked)
    assert len(inline.started) == 6, "all of them are finished"
    for file in (tmp_path / "study" / "data").glob("train*"):
        file.unlink()
    assert {each.status for each in run.study(asked, train=False).outcomes} == {"finished"}, (
        "without its data"
    )


def test_a_test_set_that_also_validates_is_named(tmp_path: Path) -> None:
    """By its contents: the file may have another name."""
    for name, text in (("train", "a b"), ("valid", "b c"), ("copy", "b c"), ("unseen", "c d")):
        (tmp_path / f"{name}.txt").write_text(f"{text}\n" * 20, encoding="utf-8")

    def results(*tests: str, **training: Any) -> Results:
        data = {name: str(tmp_path / f"{name}.txt") for name in ("train", "valid")}
        tree = {
            "folder": str(tmp_path / "study"),
            "task": "language_modeling",
            "settings": {"data": data | {"block": 16}, "training": {"max_tokens": 64} | training},
            "models": {"none": {}},
            "tests": {name: {"source": str(tmp_path / f"{name}.txt")} for name in tests},
        }
        asked = make(StudySettings, tree | TUNED, "here")
        first = tuned(grid(asked, "here"), "loss")
        return Results(asked, first, [Outcome(trial, "open") for trial in first.trials])

    assert "No test set was read for the choice." in " ".join(summary.tuned(results("unseen")))
    both = results("copy", "unseen")
    assert both.validating == ["copy"]
    (said,) = summary.tuned(both)
    assert "No test set" not in said
    assert said.endswith("have no scores of unseen examples: `copy`.")
    note = "Test set copy is also the validation, which selected checkpoints."
    assert [*_notes(both)] == []
    assert [*_notes(results("copy", average_last=0))] == [note]


def test_a_plan_has_as_many_trials_as_will_run(tmp_path: Path) -> None:
    trials = names(planned(settings(tmp_path, **TUNED), "here"))
    assert len(trials) == 2 * (len(RATES) + 1)
    assert len({*trials}) == len(trials)


@pytest.fixture
def once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[StudySettings, Inline]:
    """A tuned study of one step, one seed and the score of the validation, and what its launcher starts."""
    common = settings(tmp_path).settings
    common["training"] |= ONE_STEP
    changes = TUNED | {"tuning": {"axis": "rate"}, "seeds": [1]}
    return settings(tmp_path / "study", settings=common, **changes), run_inline(monkeypatch)


def failing(monkeypatch: pytest.MonkeyPatch, *failed: str) -> None:
    """Let trials fail; without names none does."""
    train = trial.run_trial

    def attempt(folder: Path, name: str) -> None:
        if name in failed:
            raise ValueError("boom")
        train(folder, name)

    monkeypatch.setattr(trial, "run_trial", attempt)


@pytest.mark.filterwarnings("ignore::floater.lab.tasks.translation.CutTranslation")
def test_until_all_labels_have_ended_none_is_compared(once: tuple[StudySettings, Inline]) -> None:
    asked, _ = once
    run.study(replace(asked, axes={"rate": {"1e-6": RATES["1e-6"]}}))
    results = run.study(asked, train=False)
    assert {outcome.status for outcome in results.outcomes} == {"finished", "open"}
    assert not results.comparisons
    assert not results.references
    assert results.baseline is None


@pytest.mark.filterwarnings("ignore::floater.lab.tasks.translation.CutTranslation")
def test_a_failed_label_is_out_until_the_study_is_started_again(
    once: tuple[StudySettings, Inline], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, inline = once
    with monkeypatch.context() as patch:
        failing(patch, "none-1e-2-1")
        results = run.study(asked)
    assert {variant.name for variant in results.grid.variants} >= {"none-1e-6"}
    assert "none, rate 1e-2: boom" in (Path(asked.folder) / "report.html").read_text()
    assert len(inline.started) == 4, "each is tried once"
    run.study(asked, train=False)
    again = run.study(asked)
    assert inline.started[4:] == ["none-1e-2-1"]
    assert all(label.score is not None for labels in again.grid.tried.values() for label in labels.values())


@pytest.mark.filterwarnings("ignore::floater.lab.tasks.translation.CutTranslation")
def test_a_model_whose_labels_all_failed_is_tried_once_and_no_reference(
    once: tuple[StudySettings, Inline], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, inline = once
    failing(monkeypatch, "none-1e-2-1", "none-1e-6-1")
    three = replace(
        asked, models={"none": {}, "sinusoidal": {}, "alibi": {}}, comparisons=[["none", "sinusoidal"]]
    )
    results = run.study(three)
    assert len(inline.started) == len({*inline.started}) == 6
    assert not results.references, "not another model in its place"
    assert results.baseline is None
    assert not results.comparisons


def test_a_score_that_the_validation_lacks_is_named(tmp_path: Path) -> None:
    first = grid(settings(tmp_path, **TUNED), "here").trials[0]
    (first.run / "model").mkdir(parents=True)
    (first.run / "cost.json").write_text("{}")
    (first.run / "result.json").write_text('{"bleu": 3.0}')
    labels = tried([first], "loss", task("translation"))
    assert labels["none"]["1e-6"].error == "its validation has no loss"
    assert tried([first], "score", task("translation"))["none"]["1e-6"].score == 3.0


def test_labels_of_one_model_are_compared_with_the_first() -> None:
    """As without tuning: the axis that is compared has no baseline but its first label."""
    variants = [
        Variant(f"alibi-{blocks}-1e-2", "alibi", "alibi", {}, [1], labels=(blocks,), tuned="1e-2")
        for blocks in ("input", "all")
    ]
    drawn = build_study(["alibi"], [1], lambda *_: np.ones(len(LENGTHS)))
    results = Results(drawn.settings, replace(drawn.grid, variants=variants), [])
    assert {name: base.name for name, base in results.references.items()} == {
        "alibi-all-1e-2": "alibi-input-1e-2"
    }


def test_variants_are_compared_at_equal_labels_of_the_other_axes() -> None:
    """Whatever the label of the tuned axis is."""
    variants = [
        Variant(f"{model}-{problem}-{rate}", model, model, {}, [1], labels=(problem,), tuned=rate)
        for model, problem, rate in (
            ("none", "copy", "1e-6"),
            ("alibi", "copy", "1e-2"),
            ("none", "sort", "1e-2"),
            ("alibi", "sort", "1e-6"),
        )
    ]
    drawn = build_study(["none", "alibi"], [1], lambda *_: np.ones(len(LENGTHS)))
    results = Results(replace(drawn.settings, baseline="none"), replace(drawn.grid, variants=variants), [])
    compared = {name: base.name for name, base in results.references.items()}
    assert compared == {"alibi-copy-1e-2": "none-copy-1e-6", "alibi-sort-1e-6": "none-sort-1e-2"}
    assert results.base_name == "none"


labels = st.dictionaries(
    st.text(min_size=1),
    st.tuples(st.one_of(st.none(), st.just(math.nan), st.integers(0, 3).map(float)), st.integers(0, 2)),
    min_size=1,
)


@given(labels, st.booleans())
def test_no_label_is_better_than_the_chosen_one(drawn: dict[str, tuple[Any, float]], greater: bool) -> None:
    reached = {
        name: Tried("exact", score, greater, loss, error="" if score is not None else "failed")
        for name, (score, loss) in drawn.items()
    }
    chosen = best(reached)
    valid = {name: pair for name, pair in drawn.items() if pair[0] is not None and pair[0] == pair[0]}
    if not valid:
        assert chosen is None
        return
    assert chosen is not None
    top = (max if greater else min)(score for score, _ in valid.values())
    assert valid[chosen][0] == top
    assert valid[chosen][1] == min(loss for score, loss in valid.values() if score == top)


@given(labels)
def test_a_choice_waits_for_every_label(drawn: dict[str, tuple[Any, float]]) -> None:
    reached = {name: Tried("exact", score) for name, (score, _) in drawn.items()}
    open_ = any(score is None for score, _ in drawn.values())
    variants = [Variant(f"alibi-{name}", "alibi", "alibi", {}, [1, 2], tuned=name) for name in drawn]
    now = [*with_seeds(variants, {"alibi": reached})]
    if open_ or best(reached) is None:
        assert [variant.seeds for variant in now] == [[1]] * len(drawn)
    else:
        assert [(variant.tuned, variant.seeds) for variant in now] == [(best(reached), [1, 2])]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tuning": {"axis": "rate"}}, "tuning.axis is .rate.; axes is empty"),
        ({"axes": {"rate": RATES}, "tuning": {"axis": "rates"}}, "did you mean 'rate'"),
        ({"tuning": {"by": "loss"}}, "by is 'loss', which needs axis"),
        ({**TUNED, "models": {"none": {}, "alibi": {"start": "none"}}}, "leave out start of 'alibi'"),
    ],
)
def test_impossible_tuning_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(tmp_path, **changes)


def test_a_choice_by_a_validation_that_there_is_not_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = settings(tmp_path).settings
    training = {key: value for key, value in common["training"].items() if key != "samples"}
    blind = common | {"training": training | {"eval_strategy": "no", "eval_steps": None}}
    with pytest.raises(SettingsError, match=r"none-1e-6-1: tuning chooses by validation, but .* is 'no'"):
        grid(settings(tmp_path, settings=blind, **TUNED), "here")
    monkeypatch.setattr(type(task("translation")), "validation_loss", None)
    with pytest.raises(SettingsError, match="a validation of task 'translation' has none; leave it out"):
        grid(settings(tmp_path, **TUNED), "here")


def test_settings_without_tuning_have_none(tmp_path: Path) -> None:
    asked: StudySettings = settings(tmp_path, axes={"rate": RATES})
    assert asked.compared_axes == asked.axes
    assert {trial.variant.tuned for trial in grid(asked, "here").trials} == {None}
