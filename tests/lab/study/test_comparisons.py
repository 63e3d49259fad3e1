"""Comparisons of variants and their significance tests, on synthetic results with known verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_ind, ttest_rel

from floater.lab.settings import SettingsError
from floater.lab.study import figures, report, results, summary, tables
from floater.lab.study.column import Column
from floater.lab.study.results import Outcome, Results, gather
from floater.lab.tasks import task
from floater.lab.tasks.measurement import Array

from .made_up import LENGTHS, asked, build_study


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
    assert summary.answer(actual)[-1] == "Best mean, whether significant or not: `high` in every score."
    assert summary.answer(actual)[0].startswith("`high` against `low`: significantly better in ")
    assert [row[0].text for row in tables.answer(actual).rows] == ["high − low", "low − none"]
    assert summary.answer(plain)[0].startswith("Significantly better than `none` in some column: `high`")


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
