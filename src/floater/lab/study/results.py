"""Results of a study: scores of each variant on each test set, and their comparisons."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from floater.errors import nearest
from floater.lab.settings import SettingsError
from floater.lab.study import short_to_long
from floater.lab.study.column import VALIDATION, Column
from floater.lab.study.grid import Grid
from floater.lab.study.progress import entries
from floater.lab.study.settings import StudySettings, bounds
from floater.lab.study.significance import Difference, holm, paired_p, paired_t_p, resampled, welch_p
from floater.lab.study.trial import is_measured, is_trained, read
from floater.lab.study.variants import COST, Trial, Variant, last_error
from floater.lab.tasks import registry
from floater.lab.tasks.corpora.splits import with_split
from floater.lab.tasks.measurement import METRICS, Array, Measurement
from floater.lab.training.contents import references
from floater.lab.training.files import read_record
from floater.lab.training.run import RESULT

Conclusion = Literal["better", "worse", "not significant", "not tested"]

_BELOW = 3
_CHOSE = "best_valid_"
"""Prefix in a run's result of the metric that chose its checkpoint."""


@dataclass(frozen=True)
class Outcome:
    """Result of a trial.

    Args:
        trial: the trial.
        status: "finished", "failed", or "open" for one that has not ended.
        error: message of the error of a failed trial.
        cost: cost of its training, its machine and its software; empty before the end of training.
        result: the run's own scores at its end.
        log: entries of the run's log.
        measured: measurements by test set.
    """

    trial: Trial
    status: Literal["finished", "failed", "open"]
    error: str = ""
    cost: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    measured: dict[str, Measurement] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Return whether the trial has scores: it is finished, or scored on some of the test sets."""
        return self.status == "finished" or bool(self.measured)

    @property
    def tokens_per_second(self) -> float | None:
        """Return the median of the logged training speed; None without an entry."""
        rates = [entry["tokens_per_second"] for entry in self.log if "tokens_per_second" in entry]
        return float(np.median(rates)) if rates else None

    def count(self, column: Column) -> int | None:
        """Return the number of the trial's examples in a column, whole ones of which bins have parts.

        It is None for a test set without measurement.
        """
        measurement = self.measured.get(column.test)
        return None if measurement is None else measurement.count(column.chosen(measurement.lengths))

    def score(self, column: Column) -> float | None:
        """Return the trial's score in a column; None where it has none that is finite, as in an empty bin."""
        score, measurement = None, self.measured.get(column.test)
        if column.test == VALIDATION:
            score = self.result.get(column.metric) if f"{_CHOSE}{column.metric}" in self.result else None
        elif measurement is not None and column.metric in measurement.metrics:
            score = measurement.score(column.metric, column.chosen(measurement.lengths))
        return score if score is not None and math.isfinite(score) else None


@dataclass(frozen=True)
class Value:
    """Scores of a variant's seeds in a column.

    Args:
        scores: scores of the seeds that have one.
        seeds: number of seeds that were scored; some may have no score, as where a model refuses a length.
    """

    scores: list[float]
    seeds: int

    @property
    def mean(self) -> float:
        """Return the mean over the seeds."""
        return float(np.mean(self.scores))

    @property
    def spread(self) -> float | None:
        """Return the standard deviation over the seeds; None for one."""
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else None


@dataclass(frozen=True)
class Comparison:
    """A variant against another in a column.

    Args:
        variant: name of the variant.
        reference: name of the variant that it is compared with.
        column: column of the table.
        difference: difference of the scores, with its p values.
        p: p value corrected for all comparisons of the table; None if no test applies.
    """

    variant: str
    reference: str
    column: Column
    difference: Difference
    p: float | None


@dataclass(frozen=True)
class Results:
    """All results of a study so far.

    Args:
        settings: the study's settings.
        grid: the study's variants, trials and test sets.
        outcomes: the outcome of each trial, in the grid's order.
    """

    settings: StudySettings
    grid: Grid
    outcomes: list[Outcome]

    def outcomes_of(self, variant: Variant) -> list[Outcome]:
        """Return the outcomes of a variant's seeds that count."""
        return [o for o in self.outcomes if o.trial.variant.name == variant.name and o.counts]

    @cached_property
    def by_key(self) -> dict[str, Variant]:
        """Return the variants by their names without a tuned label, once it is chosen."""
        keys = Counter(variant.key for variant in self.grid.variants)
        return {variant.key: variant for variant in self.grid.variants if keys[variant.key] == 1}

    @cached_property
    def asked(self) -> list[tuple[Variant, Variant]]:
        """Return the pairs of variants of the settings' comparisons."""
        return [
            (self.by_key[ours], self.by_key[theirs])
            for ours, theirs in self.settings.comparisons
            if {ours, theirs} <= self.by_key.keys()
        ]

    @cached_property
    def references(self) -> dict[str, Variant]:
        """Return the variant that each other one is compared with, on axes that of its labels."""
        variants, named = self.grid.variants, self.settings.baseline
        if named is None and len({variant.model for variant in variants}) == 1:
            named = variants[0].key
        references = {}
        for variant in self.by_key.values():
            if named is None:
                chosen = [other for other in variants if other.labels == variant.labels]
            else:
                names = named, "-".join((named, *variant.labels))
                chosen = [other for other in variants if other.key in names]
            base = self.by_key.get(chosen[0].key) if chosen else None
            if base is not None and base is not variant:
                references[variant.name] = base
        return references

    @cached_property
    def baseline(self) -> Variant | None:
        """Return the variant that all others are compared with.

        None where each has that of its labels, or where the label of the baseline is not chosen.
        """
        bases = {variant.name: variant for variant in self.references.values()}
        alone = self.grid.variants if len(self.grid.variants) == 1 else []
        return None if len(bases) > 1 else next(iter([*bases.values(), *alone]), None)

    @property
    def base_name(self) -> str:
        """Return the name of the baseline that variants are compared with, or of a model at equal labels."""
        if self.baseline is not None:
            return self.baseline.name
        base = next(iter(self.references.values()), None)
        return "" if base is None else base.base_name

    @property
    def lengths(self) -> str:
        """Return the unit of the lengths of the test examples, or all units."""
        task = registry.task(self.settings.task)
        *others, last = dict.fromkeys(task.lengths(trial.settings) for trial in self.grid.trials)
        return f"{', '.join(others)} or {last}" if others else last

    @property
    def selects(self) -> bool:
        """Return whether validation chose the checkpoint that became the model of some trial."""
        return any(outcome.trial.settings.training.selects for outcome in self.outcomes)

    @cached_property
    def validating(self) -> list[str]:
        """Return the test sets with examples that also validate a trial, by the contents of their files."""
        splits = self.grid.task is not None and self.grid.task.reads_tables
        named = dict[str, Any]()  # once, as each file is read
        for trial in self.grid.trials:
            for name in ("valid", "valid_source"):
                value = getattr(getattr(trial.settings, "data", None), name, None)
                named[repr(value)] = with_split(value, "valid") if splits and value else value
        read = {*references([*named.values()])}
        return [
            test
            for test, arguments in self.grid.tests.items()
            if any(one.overlaps(other) for one in references(arguments.get("source")) for other in read)
        ]

    @cached_property
    def metrics(self) -> dict[str, list[str]]:
        """Return the measured metrics of each test set, the study's `metric` first."""
        metrics: dict[str, dict[str, None]] = {}
        for outcome in self.outcomes:
            for test, measured in outcome.measured.items():
                metrics.setdefault(test, {}).update(dict.fromkeys(measured.metrics))
        first = self.settings.metric
        return {test: sorted(names, key=lambda name: name != first) for test, names in metrics.items()}

    def columns(self, metric: int | None = 0) -> list[Column]:
        """Return the columns of each test set.

        Args:
            metric: index of the metric among those of the test set, 0 for the main one; None for all metrics.
        """
        columns = []
        for test, metrics in self.metrics.items():
            chosen = metrics if metric is None else metrics[metric : metric + 1]
            for name in chosen:
                bins = self._bins(test, name)
                whole = [] if bins and test == short_to_long.TEST else [Column(test, name)]
                columns += whole + [Column(test, name, *bin) for bin in bins]
        return columns if self.grid.tests or metric else columns + self.validations

    @cached_property
    def validations(self) -> list[Column]:
        """Return a column for each metric that chooses checkpoints; tasks of GLUE as an axis have several."""
        task, columns = registry.task(self.settings.task), dict[Column, None]()
        for outcome in self.outcomes:
            for name in outcome.result:
                if name.startswith(_CHOSE):
                    rises = task.best(outcome.trial.settings)["greater"]
                    columns[Column(VALIDATION, name.removeprefix(_CHOSE), rises=rises)] = None
        return [*columns]

    def _bins(self, test: str, metric: str) -> list[tuple[int, int | None]]:
        """Return the bins of a test set, without those that only test sets with longer windows reach."""
        bins = []
        for bin in bounds(self.settings.edges):
            here = self.count(Column(test, metric, *bin))
            if here != 0 or not any(self.count(Column(other, metric, *bin)) for other in self.metrics):
                bins.append(bin)
        return bins if len(bins) > 1 else []

    def value(self, variant: Variant, column: Column) -> Value | None:
        """Return the scores of a variant's seeds in a column; None if no seed has one."""
        scored = [
            o for o in self.outcomes_of(variant) if column.test == VALIDATION or column.test in o.measured
        ]
        scores = [score for o in scored if (score := o.score(column)) is not None]
        return Value(scores, len(scored)) if scores else None

    def best(self, column: Column, among: Sequence[Variant] | None = None) -> list[Variant]:
        """Return the variants with the best mean in a column, several if tied.

        The list is empty if fewer than two have a score, all are tied, or their scores are not comparable.

        Args:
            column: the column.
            among: the variants; None for all of the study.
        """
        variants = self.grid.variants if among is None else among
        means = {variant.name: value.mean for variant in variants if (value := self.value(variant, column))}
        if column.greater is None or not means:
            return []
        first, *others = [variant for variant in variants if variant.name in means]
        if not all(self.comparable(first, other, column) for other in others):
            return []
        top = (max if column.greater else min)(means.values())
        tied = {name for name, mean in means.items() if is_tied(mean, top)}
        return [variant for variant in variants if variant.name in tied] if len(tied) < len(means) else []

    def comparable(self, variant: Variant, other: Variant, column: Column) -> bool:
        """Return whether the scores of two variants answer the same questions and are computed alike.

        The task decides whether the questions are the same, the signatures of the scores whether the
        computation is.
        """
        same = self._question(variant, column) == self._question(other, column)
        return bool(same) and len(self.signatures(column, variant, other)) < 2

    def answers_others(self, column: Column) -> bool:
        """Return whether variants in a column answer other questions than some that are not in it."""
        variants = [variant for variant in self.grid.variants if self.outcomes_of(variant)]
        return column.test == VALIDATION and len({repr(self._question(v, column)) for v in variants}) > 1

    def signatures(self, column: Column, *variants: Variant) -> set[str]:
        """Return the different signatures of the variants' scores in a column; empty for a score without."""
        metric = METRICS[column.metric].of or column.metric if column.metric in METRICS else column.metric
        measured = (measurement for each in variants for measurement in self._measured(each, column))
        return {
            measurement.signatures[metric] for measurement in measured if metric in measurement.signatures
        }

    def _question(self, variant: Variant, column: Column) -> Any:
        """Return the task's key of the questions that a variant's scores answer; None without an outcome."""
        settings = next((outcome.trial.settings for outcome in self.outcomes_of(variant)), None)
        if settings is None:
            return None
        test = None if column.test == VALIDATION else self.grid.tests[column.test]
        return registry.task(self.settings.task).question(settings, column.metric, test)

    def count(self, column: Column) -> int | None:
        """Return the number of examples of a column; None if no trial is measured on its test set."""
        return next((n for o in self.outcomes if (n := o.count(column)) is not None), None)

    @cached_property
    def pairs(self) -> list[tuple[Variant, Variant]]:
        """Return the pairs of variants to compare: each with the baseline, and those of the settings."""
        variants = {variant.name: variant for variant in self.grid.variants}
        others = [(variants[name], base) for name, base in self.references.items()]
        return others + [pair for pair in self.asked if pair not in others]

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Return the comparisons of all pairs, in the columns of the first metric of each test set."""
        differences: list[tuple[str, str, Column, Difference]] = []
        for column in self.columns():
            drawn: dict[str, Array | None] = {}
            for variant, reference in self.pairs:
                ours, theirs = self.value(variant, column), self.value(reference, column)
                if ours is None or theirs is None or not self.comparable(variant, reference, column):
                    continue
                difference, p_examples = ours.mean - theirs.mean, None
                if self._paired(variant, reference, column):
                    for each in (variant, reference):
                        if each.name not in drawn:
                            drawn[each.name] = self._resampled(each, column)
                    one, other = drawn[variant.name], drawn[reference.name]
                    assert one is not None
                    assert other is not None
                    (measured, *_) = self._measured(variant, column)  # of other variants there may be more
                    count = measured.count(column.chosen(measured.lengths))
                    p_examples = paired_p(one, other, difference, count)
                seeds = self._seeds_p(variant, reference, column)
                if p_examples is None and seeds == 0.0:  # without a spread over seeds nothing can be tested
                    seeds = None
                differences.append(
                    (variant.name, reference.name, column, Difference(difference, p_examples, seeds))
                )
        # a variant of one seed, beside others of several, shows no variance between seeds: it is not tested
        alone = all(len(variant.seeds) == 1 for variant in self.grid.variants)
        tested = {
            i: each.p
            for i, (*_, each) in enumerate(differences)
            if each.p is not None and (alone or each.p_seeds is not None)
        }
        corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
        return [Comparison(*each, corrected.get(i)) for i, each in enumerate(differences)]

    @cached_property
    def samples(self) -> int:
        """Return a number of resamplings with which the smallest possible corrected p is below the level."""
        most = max(1, len(self.pairs) * len(self.columns()))
        return max(self.settings.samples, math.ceil(_BELOW * most / self.settings.level))

    def against_baseline(self) -> list[Comparison]:
        """Return the comparisons with the baseline."""
        return [
            comparison
            for comparison in self.comparisons
            if (base := self.references.get(comparison.variant)) and comparison.reference == base.name
        ]

    def compared(self, variant: Variant, column: Column) -> Comparison | None:
        """Return the comparison of a variant with the baseline in a column, if there is one."""
        key = variant.name, column
        return next((c for c in self.against_baseline() if (c.variant, c.column) == key), None)

    def conclusion(self, comparison: Comparison) -> Conclusion:
        """Return the direction of a significant difference, or why there is none."""
        if comparison.p is None:
            return "not tested"
        if comparison.p >= self.settings.level or not comparison.difference.mean:
            return "not significant"
        return "better" if (comparison.difference.mean > 0) == comparison.column.greater else "worse"

    def _seeds_p(self, variant: Variant, reference: Variant, column: Column) -> float | None:
        """Return the p value over seeds, paired if each trial of one variant starts from one of the other."""
        ours, theirs = (
            {o.trial.seed: score for o in self.outcomes_of(each) if (score := o.score(column)) is not None}
            for each in (variant, reference)
        )
        if follows(variant, reference) and ours.keys() == theirs.keys():
            return paired_t_p([ours[seed] - theirs[seed] for seed in ours])
        return welch_p([*ours.values()], [*theirs.values()])

    def _measured(self, variant: Variant, column: Column) -> list[Measurement]:
        """Return the measurements of the variant's seeds that have a score in a column."""
        there = [
            o for o in self.outcomes_of(variant) if column.test in o.measured and o.score(column) is not None
        ]
        return [outcome.measured[column.test] for outcome in there]

    def _paired(self, variant: Variant, reference: Variant, column: Column) -> bool:
        """Return whether two variants have the same examples, one by one, judged by their lengths and units.

        The examples of a language model's text differ between models that divide it differently.
        """
        measured = [self._measured(each, column) for each in (variant, reference)]
        every = [measurement for each in measured for measurement in each]
        return all(measured) and all(
            np.array_equal(every[0].lengths, other.lengths) and np.array_equal(every[0].units, other.units)
            for other in every[1:]
        )

    def _resampled(self, variant: Variant, column: Column) -> Array | None:
        measured = self._measured(variant, column)
        if not measured:
            return None
        statistics = [each.by_unit(column.metric, column.chosen(each.lengths)) for each in measured]
        return resampled(METRICS[column.metric].score, statistics, self.samples)


def is_tied(mean: float, other: float) -> bool:
    """Return whether two means are equal up to their rounding, which depends on the order of the seeds.

    Example:
        >>> is_tied(np.mean([0.9, 0.1, 0.6]), np.mean([0.6, 0.9, 0.1])), is_tied(0.5, 0.5000001)
        (True, False)
    """
    return math.isclose(mean, other, rel_tol=1e-12)


def follows(variant: Variant, other: Variant) -> bool:
    """Return whether the trials of one variant start from those of the other."""
    return variant.start == other.name or other.start == variant.name


def gather(settings: StudySettings, grid: Grid) -> Results:
    """Return the results of a study's trials so far.

    Raises:
        SettingsError: if no test set has the metric of the settings.
    """
    results = Results(settings, grid, [_outcome(trial, grid) for trial in grid.trials])
    available = {name for metrics in results.metrics.values() for name in metrics}
    if available and settings.metric is not None and settings.metric not in available:
        raise SettingsError(
            f"metric is {settings.metric!r}, which no test set has; "
            f"{nearest(settings.metric, sorted(available))}"
        )
    return results


def _outcome(trial: Trial, grid: Grid) -> Outcome:
    outcome = Outcome(trial, "open", log=entries(trial.run))
    if is_trained(trial.run):
        tests = [test for test, arguments in grid.tests.items() if is_measured(trial.run, test, arguments)]
        outcome = replace(
            outcome,
            status="finished" if len(tests) == len(grid.tests) else "open",
            cost=read_record(trial.run / COST),
            result=read_record(trial.run / RESULT),
            measured={test: read(trial.run, test) for test in tests},
        )
    if outcome.status == "open" and trial.error.is_file():
        return replace(outcome, status="failed", error=last_error(trial))
    return outcome
