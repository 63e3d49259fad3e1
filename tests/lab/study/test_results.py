"""Tables and sentences of a report, from synthetic results."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_ind

from floater.lab.settings import make
from floater.lab.study import panels, summary, tables
from floater.lab.study.column import Column
from floater.lab.study.grid import planned
from floater.lab.study.results import Results
from floater.lab.study.settings import StudySettings
from floater.lab.study.significance import holm
from floater.lab.tasks.measurement import Array, Measurement

from .made_up import LENGTHS, asked, build_study


def test_a_metric_that_the_first_trial_lacks_is_shown() -> None:
    """As the excess of a window that is longer than the training rows of one variant alone."""
    actual = build_study(["none", "a"], [1], lambda variant, seed: np.ones(400))
    loss = actual.outcomes[1].measured["lengths"].statistics["exact"]
    actual.outcomes[1].measured["lengths"].statistics["loss"] = loss
    (rows,) = (table.rows for table in tables.others(actual).values())
    assert [[cell.text for cell in row[:2]] for row in rows] == [["none", "–"], ["a", "1.000"]]


def test_parts_of_sequences_are_resampled_as_whole_sequences() -> None:
    """With bins a sequence has an example in each; p of all of them is that of whole sequences."""
    random, sequence = np.random.default_rng(0), np.repeat(np.arange(60), 4)
    alike = {name: random.random(60) < share for name, share in (("none", 0.3), ("a", 0.5))}
    right = {name: np.stack([of[sequence], np.ones(240)], axis=1) for name, of in alike.items()}
    whole = {name: np.stack([4 * of, np.full(60, 4)], axis=1) for name, of in alike.items()}
    parts = np.tile([5, 20, 40, 100], 60)

    def compared(of: dict[str, Array], lengths: Array, units: Array) -> tuple[float | None, int | None]:
        results = build_study(["none", "a"], [1], lambda name, seed: np.ones(400))
        outcomes = [
            replace(
                o, measured={"test": Measurement(lengths, {"exact": of[o.trial.variant.name]}, units=units)}
            )
            for o in results.outcomes
        ]
        results = replace(results, outcomes=outcomes, grid=replace(results.grid, tests={"test": {}}))
        first, *bins = results.comparisons
        assert all(bin.difference.p_examples == first.difference.p_examples for bin in bins if len(units))
        return first.difference.p_examples, results.count(Column("test", "exact"))

    none = np.zeros(0, dtype=np.int64)
    assert compared(right, parts, sequence) == compared(whole, np.full(60, 4), none)
    assert compared(right, parts, sequence)[1] == 60
    alone, _ = compared(right, parts, none)
    assert alone is not None
    assert alone < 0.005 < (compared(right, parts, sequence)[0] or 0)


def test_each_task_of_glue_is_shown_by_the_score_that_chose_its_checkpoints() -> None:
    chose = {"CoLA": ("matthews", 60.0), "RTE": ("accuracy", 70.0), "STS-B": ("loss", 0.5)}
    actual = build_study([*chose], [1, 2], lambda variant, seed: np.zeros(400))
    results = {
        name: {f"best_valid_{metric}": value, metric: value} for name, (metric, value) in chose.items()
    }
    results["RTE"]["loss"] = 0.6
    outcomes = [replace(o, measured={}, result=results[o.trial.variant.name]) for o in actual.outcomes]
    trees = {name: {"data": {"task": name, "folder": "glue"}, "model": {"path": "bert"}} for name in chose}
    shown = asked(replace(actual, outcomes=outcomes, grid=replace(actual.grid, tests={})), "glue", trees)
    table = tables.scores(shown)
    assert table.head[1:4] == ["matthews validation", "accuracy (%) validation", "loss validation"]
    assert [[cell.text for cell in row[1:4]] for row in table.rows] == [
        ["60.000 ± 0.000", "–", "–"],
        ["–", "70.0 ± 0.0", "–"],
        ["–", "–", "0.500 ± 0.000"],
    ]
    assert [column.greater for column in shown.columns()] == [True, True, False]


def test_lengths_of_several_problems_have_all_their_units(tmp_path: Path) -> None:
    data = {"lengths": [3, 8], "longest": 16, "train": 100}
    tree = {
        "folder": str(tmp_path),
        "task": "generated",
        "settings": {"data": data, "model": {"preset": "tiny", "max_length": 99}},
        "models": {"none": {}},
        "axes": {"problem": {name: {"data": {"problem": name}} for name in ("parity", "copy", "reverse")}},
        "seeds": [1],
        "tests": {"lengths": {}},
    }
    settings = make(StudySettings, tree, "here")
    assert Results(settings, planned(settings, "here"), []).lengths == "bits or symbols"


def test_a_bin_that_no_model_can_be_scored_in_is_not_called_unfinished() -> None:
    actual = build_study(["none", "a"], [1], lambda variant, seed: np.where(LENGTHS == 100, math.nan, 1.0))
    assert "exact match (%) ≥ 50 (100 examples): no trial has a score there." in summary.sentences(actual)


def test_a_mean_over_some_of_the_seeds_says_so() -> None:
    """As where a model that ran away refuses the longest questions with one of its seeds."""

    def right(variant: str, seed: int) -> Array:
        fails = (variant, seed) == ("learned", 2)
        return np.where(LENGTHS == 100, math.nan, seed == 1) if fails else np.full(400, seed == 1)

    actual = build_study(["none", "learned"], [1, 2, 3], right)
    line = tables.scores(actual).rows[1]
    assert [cell.text.split(" ▲")[0] for cell in line[1:5]] == ["33.3 ± 57.7"] * 3 + [
        "50.0 ± 70.7 (2 of 3 seeds)"
    ]


def test_all_rows_that_tie_are_best() -> None:
    rates = {"none": 0, "a": 400, "b": 400, "c": 0}
    actual = build_study([*rates], [1, 2], lambda variant, seed: np.arange(400) < rates[variant])
    said = summary.sentences(actual)
    assert any("`a`, `b` score best, 100.0. Against `none` (0.0 ± 0.0): " in text for text in said)
    shown = {variant[0].text: variant[1].kind for variant in tables.scores(actual).rows}
    assert ["best" in kind for kind in shown.values()] == [False, True, True, False]
    level = build_study([*rates], [1, 2], lambda variant, seed: np.ones(400))
    assert not any("best" in variant[1].kind for variant in tables.scores(level).rows)
    assert any("all variants score the same, 100.0." in text for text in summary.sentences(level))


def test_the_same_scores_in_another_order_of_the_seeds_tie() -> None:
    """Their means in floating-point numbers differ by rounding."""
    shares = {"none": [0, 0, 0], "a": [247, 28, 97], "b": [97, 247, 28], "c": [28, 97, 247]}
    assert len({np.mean([100 * (count / 400) for count in counts]) for counts in shares.values()}) > 2
    actual = build_study([*shares], [1, 2, 3], lambda name, seed: np.arange(400) < shares[name][seed - 1])
    column = Column("lengths", "exact")
    assert [variant.name for variant in actual.best(column)] == ["a", "b", "c"]
    level = build_study(
        ["a", "b", "c"], [1, 2, 3], lambda name, seed: np.arange(400) < shares[name][seed - 1]
    )
    assert not level.best(column)
    assert any("all variants score the same" in text for text in summary.sentences(level))


@pytest.mark.parametrize("others", [[], ["a"]])
def test_who_alone_has_a_score_is_not_called_best(others: list[str]) -> None:
    actual = build_study(
        ["none", *others], [1], lambda *_: LENGTHS < 50, finished=lambda name, _: name == "none"
    )
    first = tables.scores(actual).rows[0]
    assert [cell.kind for cell in first[1:5]] == [""] * 4
    said = summary.sentences(actual)
    assert not any("best" in text for text in [*said, *summary.answer(actual)])
    alone = "; no other variant has a score there" * len(others)
    assert f"exact match (%) < 10 (100 examples): `none` scores 100.0{alone}." in said
    assert others or said[0] == "The trial is finished."


def test_a_validation_that_is_not_finite_is_no_score() -> None:
    """The means, the best one and the corrected p values of the others do not depend on it."""
    scores = {"none": [50.0, 51.0, 52.0], "a": [math.nan, 80.0, 81.0], "b": [math.inf, 60.0, 61.0]}
    actual = build_study([*scores], [1, 2, 3], lambda *_: np.ones(400))
    outcomes = [
        replace(o, measured={}, result={"best_valid_exact": score, "exact": score})
        for o in actual.outcomes
        for score in [scores[o.trial.variant.name][o.trial.seed - 1]]
    ]
    actual = replace(actual, outcomes=outcomes, grid=replace(actual.grid, tests={}))
    shown = {row[0].text: row[1].text for row in tables.scores(actual).rows}
    assert shown == {
        "none": "51.0 ± 1.0",
        "a": "80.5 ± 0.7 (2 of 3 seeds) ▲",
        "b": "60.5 ± 0.7 (2 of 3 seeds) ▲",
    }
    ps = [ttest_ind(scores[name][1:], scores["none"], equal_var=False).pvalue for name in "ab"]
    expected = holm(ps)
    assert [comparison.p for comparison in actual.comparisons] == pytest.approx(expected)


def test_who_is_best_in_one_score_is_not_called_best_in_every_score() -> None:
    """All answer the short questions."""
    actual = build_study(["none", "a"], [1, 2], lambda variant, seed: (LENGTHS < 50) | (variant == "a"))
    assert summary.answer(actual)[-1] == "Best mean, whether significant or not: `a` in exact match (%) ≥ 50."


def test_seeds_that_score_the_same_are_several() -> None:
    actual = build_study(["none", "a"], [1, 2], lambda variant, seed: np.ones(400))
    captions = [panel.caption for panel in panels.lengths(actual)]
    assert captions[0].startswith("Means over the seeds; bars are standard deviations.")
    alone = build_study(["none", "a"], [1], lambda variant, seed: np.ones(400))
    assert next(panels.lengths(alone)).caption.startswith("One seed.")


def test_what_is_not_finished_is_counted() -> None:
    actual = build_study(["none", "a"], [1, 2], lambda variant, seed: np.ones(400))
    last = actual.outcomes[-1]
    some = [*actual.outcomes[:-1], replace(last, status="failed")]
    none = [*actual.outcomes[:-1], replace(last, status="open", measured={})]
    said = [summary.sentences(replace(actual, outcomes=outcomes))[0] for outcomes in (some, none)]
    assert said == [
        "3 of 4 trials are finished, 1 failed; of the others, only those with scores are included below.",
        "3 of 4 trials are finished, 1 is not; the others are excluded below.",
    ]


def test_one_seed_that_is_best_is_called_one() -> None:
    seeds = {"none": [1, 2, 3], "chang": [1]}
    actual = build_study([*seeds], seeds, lambda variant, seed: np.full(400, variant == "chang"))
    said = summary.sentences(actual)
    assert any("`chang` scores best, 100.0 with one seed. Against" in text for text in said)


def test_who_goes_on_from_another_has_learned_for_longer() -> None:
    actual = build_study(["none", "warm"], [1], lambda variant, seed: np.ones(400), starts={"warm": "none"})
    assert any(
        text.startswith("`warm` starts from `none`: its minutes exclude")
        for text in summary.sentences(actual)
    )


def test_a_study_with_an_axis_has_a_table_with_its_labels_as_columns() -> None:
    right = {"none-easy": 300, "none-hard": 100, "a-easy": 200, "a-hard": 160}
    actual = build_study([*right], [1], lambda variant, seed: np.arange(400) % 100 < right[variant] / 4)
    axes = {"size": {"x": {}}, "problem": {"hard": {}, "easy": {}, "odd": {}}}
    labelled = [
        replace(variant, name=f"{model}-x-{label}", model=model, labels=("x", label))
        for variant in actual.grid.variants
        for model, label in [variant.name.split("-")]
    ]
    outcomes = [
        replace(outcome, trial=replace(outcome.trial, variant=variant))
        for outcome, variant in zip(actual.outcomes, labelled, strict=True)
    ]
    settings = replace(actual.settings, models=dict.fromkeys(("none", "a")), axes=axes)
    asked = Results(settings, replace(actual.grid, variants=labelled), outcomes)
    axis, by_label = tables.by_axis(asked)
    first = next(iter(by_label.values()))
    assert (axis, first.head) == ("problem", ["model", "hard", "easy"])
    assert [[cell.text for cell in row] for row in first.rows] == [
        ["none-x", "25.0", "75.0"],
        ["a-x", "40.0 ▲", "50.0 ▼"],
    ]
    best = [[cell.text for cell in row if "best" in cell.kind] for row in first.rows]
    assert best == [["75.0"], ["40.0 ▲"]]
    assert tables.by_axis(actual) == ("", {})
