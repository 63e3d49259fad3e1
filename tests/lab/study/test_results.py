"""Verdicts on made-up results, where the right one is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_ind, ttest_rel

from floater.lab.settings import SettingsError, make
from floater.lab.study import figures, panels, report, results, summary, tables
from floater.lab.study.column import Column
from floater.lab.study.grid import planned
from floater.lab.study.results import Outcome, Results, gather
from floater.lab.study.settings import StudySettings
from floater.lab.tasks import task
from floater.lab.tasks.measurement import Array

from .made_up import LENGTHS, build_study


def test_all_or_nothing_is_significant_however_many_variants_there_are() -> None:
    variants = ["none", *(f"variant{i}" for i in range(23))]
    actual = build_study(variants, [1], lambda variant, seed: np.full(400, variant != "none"))
    assert {actual.conclusion(comparison) for comparison in actual.comparisons} == {"better"}
    assert "paired bootstrap, 5,520 samples" in summary.sentences(actual)[-1]  # 92 comparisons at 0.05


def test_one_example_is_no_discovery() -> None:
    lengths = np.append(np.full(399, 5), 100)
    right = {"none": np.full(400, False), "a": np.arange(400) == 399}
    actual = build_study(
        ["none", "a"], [1, 2], lambda variant, seed: right[variant], lengths=lambda variant: lengths
    )
    last = Column("lengths", "exact", 50)
    assert actual.count(last) == 1
    assert {actual.conclusion(c) for c in actual.comparisons if c.column == last} == {"not significant"}
    assert any("exact match (%) ≥ 50 (1 example): `a` scores" in text for text in summary.sentences(actual))


def test_seeds_without_a_spread_are_not_tested() -> None:
    actual = build_study(["none", "a"], [1, 2], lambda variant, seed: np.zeros(400))
    scores = {"none": 99.5, "a": 99.75}
    outcomes = [
        replace(o, measured={}, result={"best_valid_exact": scores[name], "exact": scores[name]})
        for o in actual.outcomes
        for name in [o.trial.variant.name]
    ]
    alone = replace(actual, outcomes=outcomes, grid=replace(actual.grid, tests={}))
    assert [(c.column.test, alone.conclusion(c)) for c in alone.comparisons] == [("validation", "not tested")]
    said = "Without a spread over the seeds of either variant, a difference was not tested."
    assert summary.method(alone).endswith(said)
    assert "second scored seed" not in summary.method(alone)


@pytest.mark.parametrize(("greater", "conclusion"), [(True, "worse"), (False, "better")])
def test_a_task_says_whether_a_higher_validation_score_is_better(
    greater: bool, conclusion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(task("translation")), "greater", greater)
    actual = build_study(["none", "a"], [1, 2], lambda variant, seed: np.zeros(400))
    errors = {"none": [0.5, 0.6], "a": [0.1, 0.2]}
    outcomes = [
        replace(o, measured={}, result={"best_valid_error": error, "error": error})
        for o in actual.outcomes
        for error in [errors[o.trial.variant.name][o.trial.seed - 1]]
    ]
    validated = replace(actual, outcomes=outcomes, grid=replace(actual.grid, tests={}))
    assert [validated.conclusion(c) for c in validated.comparisons] == [conclusion]
    (column,) = validated.columns()
    assert [variant.name for variant in validated.best(column)] == ["none" if greater else "a"]


def test_a_metric_that_the_first_trial_lacks_is_shown() -> None:
    """As the excess of a window that is longer than the training rows of one variant alone."""
    actual = build_study(["none", "a"], [1], lambda variant, seed: np.ones(400))
    loss = actual.outcomes[1].measured["lengths"].statistics["exact"]
    actual.outcomes[1].measured["lengths"].statistics["loss"] = loss
    (rows,) = (table.rows for table in tables.others(actual).values())
    assert [[cell.text for cell in row[:2]] for row in rows] == [["none", "–"], ["a", "1.000"]]


def test_the_metric_of_the_settings_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the main metric is against the variant, and the chosen one for it."""
    actual = build_study(["none", "a"], [1], lambda variant, seed: np.full(400, variant == "none"))
    for outcome in actual.outcomes:
        right = outcome.measured["lengths"].statistics["exact"]
        outcome.measured["lengths"].statistics["accuracy"] = np.stack([1 - right[:, 0], right[:, 1]], axis=1)
    assert {actual.conclusion(c) for c in actual.comparisons} == {"worse"}
    outcomes = iter([*actual.outcomes] * 2)
    monkeypatch.setattr(results, "_outcome", lambda trial, grid: next(outcomes))
    chosen = gather(replace(actual.settings, metric="accuracy"), actual.grid)
    assert {(c.column.metric, chosen.conclusion(c)) for c in chosen.comparisons} == {("accuracy", "better")}
    assert list(tables.others(chosen)) == ["exact match (%)"]
    with pytest.raises(
        SettingsError, match="metric is 'loss', which no test set has; there are: accuracy, exact"
    ):
        gather(replace(actual.settings, metric="loss"), actual.grid)


def asked(actual: Results, name: str, trees: Mapping[str, Mapping[str, Any]]) -> Results:
    """The results of variants of a task, with these settings."""
    build_study = {
        each: make(task(name).Settings, {"run": each} | tree, each) for each, tree in trees.items()
    }
    outcomes = [
        replace(o, trial=replace(o.trial, settings=build_study[o.trial.variant.name]))
        for o in actual.outcomes
    ]
    grid = replace(actual.grid, trials=[outcome.trial for outcome in outcomes])
    return replace(actual, settings=replace(actual.settings, task=name), grid=grid, outcomes=outcomes)


def test_scores_of_other_tasks_are_not_compared() -> None:
    """As in a study whose problems are an axis."""
    rates = {"none-copy": 0.5, "a-copy": 0.6, "none-sort": 0.8, "a-sort": 0.9}
    draw = np.random.default_rng(0)
    actual = build_study([*rates], [1, 2, 3], lambda variant, seed: draw.random(400) < rates[variant])
    trees = {name: {"data": {"problem": name.partition("-")[2], "longest": 128}} for name in rates}
    trees["a-copy"]["data"] |= {"train": 9, "valid": 9}  # of which the test knows nothing
    apart = asked(actual, "generated", trees)
    assert {(c.variant, c.reference) for c in apart.comparisons} == {("a-copy", "none-copy")}
    assert not any(apart.best(column) for column in apart.columns())
    said = summary.answer(apart)
    assert said[-1] == (
        "Not compared with `none-copy`, as their scores measure something else: `none-sort`, `a-sort`."
    )
    assert not any("sort" in text for text in said[:-1])
    (axes,) = figures.score_by_length(apart, apart.columns()[1:], apart.baseline).axes
    assert len(axes.containers) == 2, "lines of the differences from the baseline"
    alike = asked(actual, "generated", dict.fromkeys(rates, trees["none-copy"]))
    assert len({c.variant for c in alike.comparisons}) == 3
    assert summary.answer(alike) == summary.answer(actual)
    unfinished = [
        replace(o, measured={}, status="open") if "sort" in o.trial.name else o for o in apart.outcomes
    ]
    assert "something else" not in summary.answer(replace(apart, outcomes=unfinished))[-1]


def test_scores_on_other_validation_examples_are_not_compared() -> None:
    actual = build_study(["none", "a"], [1, 2], lambda variant, seed: np.arange(400) < 100 * seed)
    other = {"none": {"data": {"train": "t", "valid": "a"}}, "a": {"data": {"train": "u", "valid": "b"}}}
    assert len(asked(actual, "tagging", other).comparisons) == len(actual.columns()), (
        "the test set is the same"
    )
    outcomes = [
        replace(o, measured={}, result={"best_valid_exact": 1.0 * o.trial.seed, "exact": 1.0 * o.trial.seed})
        for o in actual.outcomes
    ]
    validated = replace(actual, outcomes=outcomes, grid=replace(actual.grid, tests={}))
    assert len(validated.comparisons) == 1
    assert not asked(validated, "tagging", other).comparisons


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


def glue_results(scores: Mapping[str, float], **changes: Any) -> Results:
    """A study of models on tasks of GLUE, an axis of it."""
    names = {"CoLA": "matthews", "RTE": "accuracy", "STS-B": "loss"}
    tasks = {name: name.partition("-")[2] for name in scores}
    drawn = build_study([*scores], [1, 2, 3], lambda variant, seed: np.zeros(400))
    variants = {
        each.name: replace(each, model=each.name.partition("-")[0], labels=(tasks[each.name],))
        for each in drawn.grid.variants
    }

    def outcome(of: Outcome) -> Outcome:
        metric, variant = names[tasks[of.trial.variant.name]], variants[of.trial.variant.name]
        value = scores[variant.name] + 0.01 * of.trial.seed
        trial = replace(of.trial, variant=variant)
        return replace(of, trial=trial, measured={}, result={f"best_valid_{metric}": value, metric: value})

    axes = {"task": {task: {"data": {"task": task}} for task in dict.fromkeys(tasks.values())}}
    whole = replace(
        drawn,
        settings=replace(drawn.settings, axes=axes, **changes),
        outcomes=[outcome(each) for each in drawn.outcomes],
        grid=replace(drawn.grid, tests={}, variants=[*variants.values()]),
    )
    trees = {
        name: {"data": {"task": task, "folder": "glue"}, "model": {"path": "bert"}}
        for name, task in tasks.items()
    }
    return asked(whole, "glue", trees)


@pytest.mark.parametrize("baseline", [None, "plain"])
def test_a_model_is_compared_with_the_baseline_on_each_task(baseline: str | None) -> None:
    """Liu et al. 2020, Table 3; a best mean of losses is no answer, where one task of several has a loss."""
    tasks = {"CoLA": (60.0, 60.2), "RTE": (70.0, 90.0), "STS-B": (0.5, 0.4)}
    scores = {f"plain-{task}": pair[0] for task, pair in tasks.items()}
    actual = glue_results(
        scores | {f"flow-{task}": pair[1] for task, pair in tasks.items()}, baseline=baseline
    )
    pairs = {(c.variant, c.reference, c.column.metric): actual.conclusion(c) for c in actual.comparisons}
    assert pairs == {
        ("flow-CoLA", "plain-CoLA", "matthews"): "better",
        ("flow-RTE", "plain-RTE", "accuracy"): "better",
        ("flow-STS-B", "plain-STS-B", "loss"): "better",
    }
    assert actual.baseline is None
    answer = " ".join(summary.answer(actual))
    assert (
        "Significantly better than `plain` in some column: `flow-CoLA`, `flow-RTE`, `flow-STS-B`." in answer
    )
    assert "Best mean" not in answer
    (rte,) = (line for line in summary.sentences(actual) if line.startswith("accuracy"))
    assert "Against `plain` (with the same task): significantly better: `flow-RTE` (+20.0)." in rte
    marked = {row[0].text: row[2].text[-1] for row in tables.scores(actual).rows}
    assert (marked["flow-RTE"], marked["plain-RTE"]) == ("▲", "0")


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


def test_labels_of_one_model_are_compared_with_its_first() -> None:
    actual = glue_results({"plain-RTE": 70.0, "plain-CoLA": 60.0})
    assert actual.baseline is not None
    assert actual.baseline.name == "plain-RTE"


def test_rows_of_other_examples_are_tested_by_the_seeds_alone_and_it_is_said() -> None:
    draw = np.random.default_rng(0)
    of = {"none": LENGTHS, "a": LENGTHS, "b": np.repeat([5, 20, 40, 100], 150)}
    actual = build_study(
        [*of],
        [1, 2, 3],
        lambda variant, seed: draw.random(len(of[variant])) < 0.5,
        lengths=lambda variant: of[variant],
    )
    assert "By the seeds alone, as their examples are not those of the others: `b`." in summary.method(actual)
    lines = [line.split(",") for line in tables.scores_csv(actual).splitlines()]
    counts = {line[0]: line[6] for line in lines if line[4:6] == ["0", "10"]}
    assert counts == {"none": "100", "a": "100", "b": "150"}


def test_variants_of_other_examples_with_one_seed_are_said_to_be_scored_on_others() -> None:
    of = {"none": LENGTHS, "a": LENGTHS, "b": np.repeat([5, 20, 40, 100], 150)}
    actual = build_study(
        [*of], [1], lambda v, seed: np.full(len(of[v]), v != "none"), lengths=lambda v: of[v]
    )
    assert [actual.conclusion(c) for c in actual.comparisons if c.variant == "b"] == ["not tested"] * 4
    assert summary.method(actual).endswith("Variants that are scored on other examples were not tested.")


def test_a_bin_that_no_model_can_be_scored_in_is_not_called_unfinished() -> None:
    actual = build_study(["none", "a"], [1], lambda variant, seed: np.where(LENGTHS == 100, math.nan, 1.0))
    assert "exact match (%) ≥ 50 (100 examples): no trial has a score there." in summary.sentences(actual)


def test_a_row_with_one_seed_of_three_is_not_tested() -> None:
    draw = np.random.default_rng(0)
    rates = {"none": 0.5, "rotary": 0.7, "shaw": 0.5}
    actual = build_study(
        [*rates],
        [1, 2, 3],
        lambda variant, seed: draw.random(400) < rates[variant],
        finished=lambda variant, seed: variant != "rotary" or seed == 1,
    )
    conclusions = {c.variant: actual.conclusion(c) for c in actual.comparisons}
    assert conclusions == {"rotary": "not tested", "shaw": "not significant"}
    said = summary.sentences(actual)
    none = "No significant difference from `none` in any: `shaw`; not tested against `none`: `rotary`."
    assert none in said
    assert "Variants without a second scored seed were not tested." in said[-1]
    table = tables.compared(actual).markdown()
    assert "| – | – | not tested |" in table


def test_rows_that_are_screened_with_one_seed_stand_beside_those_with_more() -> None:
    draw = np.random.default_rng(0)
    rates = {"none": 0.2, "rotary": 0.9, "shaw": 0.9}
    seeds = {"none": [1, 2, 3], "rotary": [1, 2], "shaw": [1]}
    actual = build_study([*rates], seeds, lambda variant, seed: draw.random(400) < rates[variant])
    assert {c.variant: actual.conclusion(c) for c in actual.comparisons} == {
        "rotary": "better",
        "shaw": "not tested",
    }
    assert "Welch's t-test, 2 to 3 seeds" in summary.sentences(actual)[-1]
    column = tables.scores(actual).head.index("seeds")
    assert [variant[column].text for variant in tables.scores(actual).rows] == ["3/3", "2/2", "1/1"]


@pytest.mark.parametrize("starts", [{"warm": "none"}, {"none": "warm"}])
def test_trials_that_started_from_others_are_compared_seed_by_seed(starts: dict[str, str]) -> None:
    right = {"none": [100, 200, 300], "warm": [103, 203, 304]}  # seeds differ by more than variants
    actual = build_study(
        ["none", "warm"],
        [1, 2, 3],
        lambda variant, seed: np.arange(400) < right[variant][seed - 1],
        lengths=lambda variant: np.full(400, 5),
        starts=starts,
    )
    (compared,) = actual.comparisons
    assert compared.difference.p_seeds == pytest.approx(ttest_rel(right["warm"], right["none"]).pvalue)
    assert "3 seeds, seed by seed with `warm`" in summary.sentences(actual)[-1]


def test_trials_that_started_from_others_with_other_seeds_are_not_paired() -> None:
    """Seed by seed the variant is a little better, and its mean is lower, as its best seed is missing."""
    right = {"none": [100, 200, 300], "warm": [103, 203]}
    actual = build_study(
        ["none", "warm"],
        {"none": [1, 2, 3], "warm": [1, 2]},
        lambda variant, seed: np.arange(400) < right[variant][seed - 1],
        lengths=lambda variant: np.full(400, 5),
        starts={"warm": "none"},
    )
    (compared,) = actual.comparisons
    assert compared.difference.mean < 0
    assert compared.difference.p_seeds == pytest.approx(
        ttest_ind(right["warm"], right["none"], equal_var=False).pvalue
    )


def test_pairs_that_the_study_names_are_said_to_be_compared_seed_by_seed() -> None:
    draw = np.random.default_rng(0)
    actual = build_study(
        ["none", "cold", "warm"],
        [1, 2, 3],
        lambda variant, seed: draw.random(400) < 0.5,
        starts={"warm": "cold"},
        comparisons=[("warm", "cold")],
    )
    assert "3 seeds, seed by seed with `warm`" in summary.method(actual)


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


def test_who_is_best_in_one_score_is_not_called_best_in_every_score() -> None:
    """All answer the short questions."""
    actual = build_study(["none", "a"], [1, 2], lambda variant, seed: (LENGTHS < 50) | (variant == "a"))
    assert summary.answer(actual)[0] == "Best mean: `a` in exact match (%) ≥ 50."


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


def test_a_pair_is_tested_by_its_own_number_of_examples() -> None:
    """The row above them has one example in the bin, which none of its two are scored on."""
    of = {"none": np.append(np.full(399, 5), 100), "low": LENGTHS, "high": LENGTHS}
    actual = build_study(
        [*of],
        [1],
        lambda variant, seed: np.full(len(of[variant]), variant == "high"),
        lengths=lambda variant: of[variant],
        comparisons=[("high", "low")],
    )
    last = Column("lengths", "exact", 50)
    assert actual.count(last) == 1
    (compared,) = (c for c in actual.comparisons if c.reference == "low" and c.column == last)
    assert actual.conclusion(compared) == "better"


def test_other_examples_are_not_paired() -> None:
    draw = np.random.default_rng(0)
    longer = np.repeat([5, 20, 40, 100], 150)

    def lengths(variant: str) -> Array:
        return longer if variant == "rotary" else LENGTHS

    actual = build_study(
        ["none", "rotary"],
        [1, 2],
        lambda variant, seed: draw.random(len(lengths(variant))) < (0.9 if variant == "rotary" else 0.1),
        lengths=lengths,
    )
    assert {comparison.difference.p_examples for comparison in actual.comparisons} == {None}
    assert {actual.conclusion(comparison) for comparison in actual.comparisons} == {"better"}
    alone = build_study(
        ["none", "rotary"],
        [1],
        lambda variant, seed: draw.random(len(lengths(variant))) < 0.5,
        lengths=lengths,
    )
    assert {alone.conclusion(comparison) for comparison in alone.comparisons} == {"not tested"}
    said = summary.sentences(alone)
    assert said[-1].startswith("Nothing was tested: ")
    assert not any("significantly" in sentence for sentence in said)


def test_named_comparisons_are_made_besides_those_with_the_baseline() -> None:
    rates = {"none": 0.5, "low": 0.2, "high": 0.8}
    draw = np.random.default_rng(0)
    answers = {name: [draw.random(400) < rate for _ in range(3)] for name, rate in rates.items()}

    def right(variant: str, seed: int) -> Array:
        return answers[variant][seed - 1]

    plain = build_study([*rates], [1, 2, 3], right)
    actual = build_study([*rates], [1, 2, 3], right, comparisons=[("high", "low"), ("low", "none")])
    made_of = {(c.variant, c.reference, c.column): c for c in actual.comparisons}
    assert {key[:2] for key in made_of} == {("low", "none"), ("high", "none"), ("high", "low")}
    assert len(made_of) == len(actual.comparisons), "one that is named twice is made once"
    none, low, high = actual.grid.variants
    for column in actual.columns():
        ours, theirs = actual.value(high, column), actual.value(low, column)
        assert ours is not None
        assert theirs is not None
        difference = made_of["high", "low", column].difference.mean
        assert difference == pytest.approx(ours.mean - theirs.mean)
        between = actual.compared(high, column)
        assert between is not None
        assert between.reference == none.name
    for before in plain.comparisons:  # more comparisons, a larger correction
        now = made_of[before.variant, before.reference, before.column]
        assert now.p is not None
        assert before.p is not None
        assert now.p >= before.p
    assert summary.answer(actual)[0] == "Best mean: `high` in every score."
    assert summary.answer(actual)[1].startswith("`high` against `low`: significantly better in ")
    assert [row[0].text for row in tables.answer(actual).rows] == ["high − low", "low − none"]
    assert summary.answer(plain)[1].startswith("Significantly better than `none` in some column: `high`")


@pytest.mark.parametrize("texts", [("tok:zh", "tok:zh"), ("tok:char", "tok:ja-mecab")])
def test_scores_that_were_computed_otherwise_are_not_compared(texts: tuple[str, str]) -> None:
    actual = build_study(["none", "a"], [1, 2], lambda variant, seed: np.full(400, variant == "a"))
    for outcome in actual.outcomes:
        outcome.measured["lengths"].signatures["exact"] = texts[outcome.trial.variant.name == "a"]
    same = texts[0] == texts[1]
    assert bool(actual.comparisons) == same
    assert [variant.name for variant in actual.best(Column("lengths", "exact"))] == ["a"] * same
    note = f"Scores of exact with different signatures are not compared: {'; '.join(texts)}."
    assert (note in report._notes(actual)) != same


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
