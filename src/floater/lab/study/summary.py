"""Summary of a study in sentences, with the names of variants between backticks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from floater.lab.study.column import Column
from floater.lab.study.results import Comparison, Conclusion, Results, Value, follows, is_tied
from floater.lab.study.tables import digits, signed, spread

_MOST = 12


def answer(results: Results) -> list[str]:
    """Answer the study's question with its `comparisons`, or without any with those against the baseline."""
    pairs = [
        sentence
        for ours, theirs in results.asked
        for sentence in _pair_sentences(results, ours.name, theirs.name)
    ]
    standing = [] if all(o.status == "finished" for o in results.outcomes) else [_standing(results)]
    return standing + (pairs or _overall(results)) + _apart(results) + _leaders(results)


def _leaders(results: Results) -> list[str]:
    """Name the variants with the best mean in each column, and group columns with the same ones."""
    leaders: dict[str, list[str]] = {}
    scored = [c for c in results.columns() if any(results.value(v, c) for v in results.grid.variants)]
    if any(results.answers_others(column) for column in scored):
        return []  # as of several tasks of GLUE, of which each column has some
    for column in scored:
        if best := results.best(column):
            leaders.setdefault(_listed([variant.name for variant in best]), []).append(column.label)
    if not leaders:
        return []
    if len(next(iter(leaders.values()))) == len(scored) > 1:
        return [f"Best mean, whether significant or not: {next(iter(leaders))} in every score."]
    parts = [f"{names} in {_joined(labels)}" for names, labels in leaders.items()]
    return [f"Best mean, whether significant or not: {'; '.join(parts)}."]


def _pair_sentences(results: Results, ours: str, theirs: str) -> list[str]:
    """Count in how many columns one variant differs significantly from another."""
    comparisons = [c for c in results.comparisons if (c.variant, c.reference) == (ours, theirs)]
    if not comparisons:
        return []
    counts = Counter(results.conclusion(c) for c in comparisons)
    words: dict[Conclusion, str] = {
        "better": "significantly better in",
        "worse": "significantly worse in",
        "not significant": "no significant difference in",
        "not tested": "not tested in",
    }
    scores = f" of {len(comparisons)} score{'s' * (len(comparisons) > 1)}"
    parts = [f"{text} {counts[side]}" for side, text in words.items() if counts[side]]
    return [f"`{ours}` against `{theirs}`: {parts[0]}{scores}{''.join(f', {part}' for part in parts[1:])}."]


def tuned(results: Results) -> list[str]:
    """Return sentences on the choice of the tuned axis' labels, and the errors of the trials that failed."""
    axis, tried = results.settings.tuning.axis, results.grid.tried
    metrics = {label.metric for labels in tried.values() for label in labels.values()}
    choice = (
        f"Validation {_joined(sorted(metrics))} of the final models of the first seed, for each {axis}. The "
        "best one is bold, of equal ones that of the lower loss: each model is trained with it and the other "
        "seeds, and it alone is compared."
    )
    asked, read = results.settings.short_to_long, list[str]()
    if not results.grid.tests:
        read.append("The study has no test set: the first seed is compared by scores that chose its label.")
    if results.validating:
        read.append(
            "Test sets that are also the validation, and made the choice, have no scores of unseen examples: "
            f"{_listed(results.validating)}."
        )
    if asked.enabled and not asked.builtin:
        read.append(f"Test examples below {asked.cut} tokens are the validation, which made the choice.")
    failed = [
        f"{key}, {axis} {name}: {label.error}"
        for key, labels in tried.items()
        for name, label in labels.items()
        if label.error
    ]
    return [" ".join([choice, *(read or ["No test set was read for the choice."])]), *failed]


def sentences(results: Results) -> list[str]:
    """Summarise which differences are statistically significant, a sentence or two per column."""
    lines = [_standing(results), *_continued(results), *_overall(results), *_apart(results)]
    for column in results.columns():
        lines += _column_sentences(results, column)
    if results.comparisons:
        lines.append(method(results))
    return lines


def method(results: Results) -> str:
    """Describe the tests by which a difference is significant."""
    tests = list[str]()
    tested = [comparison for comparison in results.comparisons if comparison.p is not None]
    level = any(_is_level(results, comparison) for comparison in results.comparisons if comparison.p is None)
    why = " Without a spread over the seeds of either variant, a difference was not tested." * level
    if not tested:
        return (
            "Nothing was tested: that takes two seeds of each variant, or one of each and scores of the same "
            f"examples.{why}"
        )
    if any(comparison.difference.p_examples is not None for comparison in tested):
        tests.append(f"of the test examples (paired bootstrap, {results.samples:,} samples)")
    seeds = any(comparison.difference.p_seeds is not None for comparison in tested)
    if seeds:
        counts = sorted({len(results.outcomes_of(variant)) for variant in results.grid.variants} - {0, 1})
        many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        variants = {variant.name: variant for variant in results.grid.variants}
        paired = [
            *dict.fromkeys(c.variant for c in tested if follows(variants[c.variant], variants[c.reference]))
        ]
        pairs = f", seed by seed with {_listed(paired)}" if paired else ""
        tests.append(f"of the seeds (Welch's t-test, {many} seeds{pairs})")
    count = len(tested)
    text = (
        f"Statistically significant: unlikely to come from the choice {' or that '.join(tests)}"
        f"{', each alone; the larger p' if len(tests) > 1 else '; p'} is below {results.settings.level:g} "
        f"after Holm's correction for {count} comparison{'s' * (count > 1)}."
    )
    unpaired = {c.variant for c in tested if c.difference.p_examples is None}
    if unpaired and len(unpaired) < len({c.variant for c in tested}):
        names = [variant.name for variant in results.grid.variants if variant.name in unpaired]
        text += f" By the seeds alone, as their examples are not those of the others: {_listed(names)}."
    if not seeds:
        text += " There is one seed of each: what is called better or worse may still be due to the seed."
    if any(comparison.p is None and not _is_level(results, comparison) for comparison in results.comparisons):
        which = "without a second scored seed" if seeds else "that are scored on other examples"
        text += f" Variants {which} were not tested."
    return text + why


def _is_level(results: Results, comparison: Comparison) -> bool:
    """Return whether an untested comparison has several seeds on both sides, whose scores have no spread."""
    variants = {variant.name: variant for variant in results.grid.variants}
    values = [
        results.value(variants[name], comparison.column)
        for name in (comparison.variant, comparison.reference)
    ]
    return all(value is not None and len(value.scores) > 1 for value in values)


def _standing(results: Results) -> str:
    counts = {
        status: sum(outcome.status == status for outcome in results.outcomes)
        for status in ("finished", "failed", "open")
    }
    total = len(results.outcomes)
    if counts["finished"] == total:
        return f"All {total} trials are finished." if total > 1 else "The trial is finished."
    parts = [f"{counts['finished']} of {total} trials are finished"]
    parts += [f"{counts['failed']} failed"] if counts["failed"] else []
    parts += [f"{counts['open']} {'is' if counts['open'] == 1 else 'are'} not"] if counts["open"] else []
    some = any(outcome.counts and outcome.status != "finished" for outcome in results.outcomes)
    others = "of the others, only those with scores are included" if some else "the others are excluded"
    return f"{', '.join(parts)}; {others} below."


def _continued(results: Results) -> list[str]:
    """Name the variants whose cost excludes that of the variant they start from."""
    variants = [variant for variant in results.grid.variants if variant.start is not None]
    return [
        f"`{variant.name}` starts from `{variant.start}`: its minutes exclude those of `{variant.start}`, "
        "and it has trained for longer."
        for variant in variants
    ]


def _overall(results: Results) -> list[str]:
    """Name the variants that differ significantly from the baseline in some column."""
    base = results.base_name
    if not results.comparisons:
        return []
    by_conclusion: dict[str, list[str]] = {"better": [], "worse": [], "not significant": [], "not tested": []}
    for variant in results.grid.variants:
        conclusions = {results.conclusion(c) for c in results.against_baseline() if c.variant == variant.name}
        for side in conclusions & {"better", "worse"} or conclusions & {"not significant"} or conclusions:
            by_conclusion[side].append(variant.name)
    if not any(by_conclusion[side] for side in ("better", "worse", "not significant")):
        return []
    if not (by_conclusion["better"] or by_conclusion["worse"] or by_conclusion["not tested"]):
        return [f"No variant differs significantly from `{base}` in any column."]
    words = {
        "better": f"Significantly better than `{base}` in some column",
        "worse": f"Significantly worse than `{base}` in some column",
        "not significant": f"No significant difference from `{base}` in any",
        "not tested": f"Not tested against `{base}`",
    }
    parts = [f"{words[side]}: {_listed(variants)}" for side, variants in by_conclusion.items() if variants]
    return ["; ".join([parts[0], *(part[0].lower() + part[1:] for part in parts[1:])]) + "."]


def _apart(results: Results) -> list[str]:
    """Name the variants that are not compared with the baseline, as their scores answer other questions."""
    columns, variants = results.columns(), {variant.name: variant for variant in results.grid.variants}
    apart = [
        name
        for name, base in results.references.items()
        if columns and results.outcomes_of(variants[name]) and results.outcomes_of(base)
        if not any(results.comparable(variants[name], base, column) for column in columns)
    ]
    if not apart:
        return []
    return [
        f"Not compared with `{results.base_name}`, as their scores measure something else: {_listed(apart)}."
    ]


def _column_sentences(results: Results, column: Column) -> list[str]:
    count = results.count(column)
    where = column.label + (f" ({count:,} example{'s' * (count > 1)})" if count else "")
    if count == 0:
        return [f"{column.label}: the test set has no example there."]
    values = {variant.name: results.value(variant, column) for variant in results.grid.variants}
    scored: dict[str, Value] = {name: value for name, value in values.items() if value is not None}
    if not scored:
        done = any(outcome.counts for outcome in results.outcomes)
        return [f"{where}: no trial {'has a score there' if done else 'is finished'}."]
    best = [variant.name for variant in results.best(column)]
    if len(scored) == 1:
        ((name, value),) = scored.items()
        alone = "; no other variant has a score there" * (len(values) > 1)
        return [f"{where}: `{name}` scores {spread(value, column)}{alone}."]
    means = [value.mean for value in scored.values()]
    if is_tied(min(means), max(means)):
        with_one = " that have a score" * (len(scored) < len(values))
        return [f"{where}: all variants{with_one} score the same, {digits(means[0], column)}."]
    text = f"{where}: {_best(best, scored, column)}." if best else f"{where}."
    comparisons = [c for c in results.against_baseline() if c.column == column]
    base = results.base_name
    if not comparisons:
        return [text]
    labels = f"with the same {_joined([*results.settings.compared_axes])}"
    text += f" Against `{base}` ({spread(scored[base], column) if results.baseline else labels}): "
    parts = []
    for conclusion, words in (
        ("better", "significantly better"),
        ("worse", "significantly worse"),
        ("not significant", "not significant"),
        ("not tested", "not tested"),
    ):
        chosen = [c for c in comparisons if results.conclusion(c) == conclusion]
        chosen.sort(key=lambda c: -c.difference.mean if column.greater else c.difference.mean)
        if chosen:
            parts.append(f"{words}: {_joined([f'`{c.variant}` ({signed(c)})' for c in chosen])}")
    return [text + "; ".join(parts) + "."]


def _best(names: Sequence[str], scored: Mapping[str, Value], column: Column) -> str:
    """Name the variants that score best; mention a single seed where others have several."""
    value = scored[names[0]]
    if len(names) > 1:
        return f"{_listed(names)} score best, {digits(value.mean, column)}"
    lone = len(value.scores) == 1 < max(len(other.scores) for other in scored.values())
    return f"`{names[0]}` scores best, {spread(value, column)}" + " with one seed" * lone


def _listed(names: Sequence[str]) -> str:
    return _joined([f"`{name}`" for name in names])


def _joined(texts: Sequence[str]) -> str:
    """Join texts, the first few if they are many, as the tables list all.

    Example:
        >>> _joined([str(n) for n in range(20)])
        '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 10 more'
    """
    if len(texts) <= _MOST:
        return ", ".join(texts)
    return f"{', '.join(texts[: _MOST - 2])} and {len(texts) - _MOST + 2} more"
