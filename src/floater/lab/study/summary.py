"""Summary of a study in sentences, with the names of variants between backticks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from floater.lab.study.results import Column, Comparison, Conclusion, Results, Value, follows
from floater.lab.study.tables import digits, signed, spread

_MOST = 12


def answer(results: Results) -> list[str]:
    """Answer the study's question: with the comparisons that it names, else with those with the baseline."""
    pairs = [
        found for ours, theirs in results.settings.comparisons for found in _of_pair(results, ours, theirs)
    ]
    standing = [] if all(o.status == "finished" for o in results.outcomes) else [_standing(results)]
    return standing + _leaders(results) + (pairs or _overall(results)) + _apart(results)


def _leaders(results: Results) -> list[str]:
    """Name the variants with the best mean in each column, and group columns with the same ones."""
    found: dict[str, list[str]] = {}
    for column in results.columns():
        if best := results.best(column):
            found.setdefault(_listed([variant.name for variant in best]), []).append(column.label)
    if not found:
        return []
    scored = [c for c in results.columns() if any(results.value(v, c) for v in results.grid.variants)]
    if len(next(iter(found.values()))) == len(scored) > 1:
        return [f"Best mean: {next(iter(found))} in every score."]
    parts = [f"{names} in {_joined(labels)}" for names, labels in found.items()]
    return [f"Best mean: {'; '.join(parts)}."]


def _of_pair(results: Results, ours: str, theirs: str) -> list[str]:
    """Count in how many columns one variant differs significantly from another."""
    found = [c for c in results.comparisons if (c.variant, c.reference) == (ours, theirs)]
    if not found:
        return []
    counts = Counter(results.conclusion(c) for c in found)
    words: dict[Conclusion, str] = {
        "better": "significantly better in",
        "worse": "significantly worse in",
        "not significant": "no significant difference in",
        "not tested": "not tested in",
    }
    scores = f" of {len(found)} score{'s' * (len(found) > 1)}"
    parts = [f"{text} {counts[side]}" for side, text in words.items() if counts[side]]
    return [f"`{ours}` against `{theirs}`: {parts[0]}{scores}{''.join(f', {part}' for part in parts[1:])}."]


def sentences(results: Results) -> list[str]:
    """Summarise which differences are statistically significant, a sentence or two per column."""
    lines = [_standing(results), *_continued(results), *_overall(results), *_apart(results)]
    for column in results.columns():
        lines += _of_column(results, column)
    if results.comparisons:
        lines.append(method(results))
    return lines


def method(results: Results) -> str:
    """Describe the tests by which a difference is significant."""
    tests = list[str]()
    tested = [found for found in results.comparisons if found.p is not None]
    level = any(_is_level(results, found) for found in results.comparisons if found.p is None)
    why = " Without a spread over the seeds of either variant, a difference was not tested." * level
    if not tested:
        return (
            "Nothing was tested: that takes two seeds of each variant, or one of each and scores of the same "
            f"examples.{why}"
        )
    if any(found.difference.p_examples is not None for found in tested):
        tests.append(f"of the test examples (paired bootstrap, {results.samples:,} samples)")
    seeds = any(found.difference.p_seeds is not None for found in tested)
    if seeds:
        counts = sorted({len(results.of(variant)) for variant in results.grid.variants} - {0, 1})
        many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        of = {variant.name: variant for variant in results.grid.variants}
        paired = [*dict.fromkeys(c.variant for c in tested if follows(of[c.variant], of[c.reference]))]
        pairs = f", seed by seed with {_listed(paired)}" if paired else ""
        tests.append(f"of the seeds (Welch's t-test, {many} seeds{pairs})")
    count = len(tested)
    text = (
        f"Statistically significant: unlikely to come from the choice {' or that '.join(tests)}, each alone; "
        f"the larger p is below {results.settings.level:g} after Holm's correction for {count} "
        f"comparison{'s' * (count > 1)}."
    )
    unpaired = {c.variant for c in tested if c.difference.p_examples is None}
    if unpaired and len(unpaired) < len({c.variant for c in tested}):
        names = [variant.name for variant in results.grid.variants if variant.name in unpaired]
        text += f" By the seeds alone, as their examples are not those of the others: {_listed(names)}."
    if not seeds:
        text += " There is one seed of each: what is called better or worse may still be due to the seed."
    if any(found.p is None and not _is_level(results, found) for found in results.comparisons):
        which = "without a second scored seed" if seeds else "that are scored on other examples"
        text += f" Variants {which} were not tested."
    return text + why


def _is_level(results: Results, found: Comparison) -> bool:
    """Return whether both variants of an untested comparison have several seeds: these have no spread."""
    of = {variant.name: variant for variant in results.grid.variants}
    values = [results.value(of[name], found.column) for name in (found.variant, found.reference)]
    return all(value is not None and len(value.scores) > 1 for value in values)


def _standing(results: Results) -> str:
    counts = {
        status: sum(outcome.status == status for outcome in results.outcomes)
        for status in ("finished", "failed", "open")
    }
    total = len(results.outcomes)
    if counts["finished"] == total:
        return f"All {total} trials are finished."
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
    base = results.baseline
    if base is None or not results.comparisons:
        return []
    found: dict[str, list[str]] = {"better": [], "worse": [], "not significant": [], "not tested": []}
    for variant in results.grid.variants:
        conclusions = {results.conclusion(c) for c in results.against_baseline() if c.variant == variant.name}
        for side in conclusions & {"better", "worse"} or conclusions & {"not significant"} or conclusions:
            found[side].append(variant.name)
    if not any(found[side] for side in ("better", "worse", "not significant")):
        return []
    if not (found["better"] or found["worse"] or found["not tested"]):
        return [f"No variant differs significantly from `{base.name}` in any column."]
    words = {
        "better": f"Significantly better than `{base.name}` in some column",
        "worse": f"Significantly worse than `{base.name}` in some column",
        "not significant": f"No significant difference from `{base.name}` in any",
        "not tested": f"Not tested against `{base.name}`",
    }
    parts = [f"{words[side]}: {_listed(variants)}" for side, variants in found.items() if variants]
    return ["; ".join([parts[0], *(part[0].lower() + part[1:] for part in parts[1:])]) + "."]


def _apart(results: Results) -> list[str]:
    """Name the variants that are not compared with the baseline, as their scores are of other questions."""
    base, columns = results.baseline, results.columns()
    if base is None or not columns or not results.of(base):
        return []
    apart = [
        variant.name
        for variant in results.grid.variants
        if results.of(variant) and not any(results.comparable(variant, base, column) for column in columns)
    ]
    if not apart:
        return []
    return [f"Not compared with `{base.name}`, as their scores are of something else: {_listed(apart)}."]


def _of_column(results: Results, column: Column) -> list[str]:
    count = results.count(column)
    where = column.label + (f" ({count:,} example{'s' * (count > 1)})" if count else "")
    if count == 0:
        return [f"{column.label}: the test set has no example there."]
    values = {variant.name: results.value(variant, column) for variant in results.grid.variants}
    known: dict[str, Value] = {name: value for name, value in values.items() if value is not None}
    if not known:
        done = any(outcome.counts for outcome in results.outcomes)
        return [f"{where}: no trial {'has a score there' if done else 'is finished'}."]
    best = [variant.name for variant in results.best(column)]
    means = {value.mean for value in known.values()}
    if len(means) == 1 < len(known):
        return [f"{where}: all variants score the same, {digits(means.pop(), column)}."]
    text = f"{where}: {_best(best, known, column)}." if best else f"{where}."
    found = [c for c in results.against_baseline() if c.column == column]
    if results.baseline is None or results.baseline.name not in known or not found:
        return [text]
    base = results.baseline.name
    text += f" Against `{base}` ({spread(known[base], column)}): "
    parts = []
    for conclusion, words in (
        ("better", "significantly better"),
        ("worse", "significantly worse"),
        ("not significant", "not significant"),
        ("not tested", "not tested"),
    ):
        chosen = [c for c in found if results.conclusion(c) == conclusion]
        chosen.sort(key=lambda c: -c.difference.mean if column.greater else c.difference.mean)
        if chosen:
            parts.append(f"{words}: {_joined([f'`{c.variant}` ({signed(c)})' for c in chosen])}")
    return [text + "; ".join(parts) + "."]


def _best(names: Sequence[str], known: Mapping[str, Value], column: Column) -> str:
    """Name the variant that scores best; with its number of seeds, where others have more."""
    value = known[names[0]]
    if len(names) > 1:
        return f"{_listed(names)} score best, {digits(value.mean, column)}"
    lone = len(value.scores) == 1 < max(len(other.scores) for other in known.values())
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
