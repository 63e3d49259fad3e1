"""What a study found, in plain sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from floater.study.results import Column, Comparison, Results, Value
from floater.study.tables import digits, spread

_MOST = 12


def sentences(results: Results) -> list[str]:
    """What differs beyond chance and what does not, a sentence or two for each column of the table."""
    said = [_standing(results), *_continued(results), *_overall(results)]
    for column in results.columns():
        said += _of_column(results, column)
    if results.comparisons:
        said.append(method(results))
    return said


def method(results: Results) -> str:
    """What "beyond chance" means here."""
    tests = list[str]()
    tested = [found for found in results.comparisons if found.p is not None]
    if not tested:
        return (
            "Nothing was tested: that takes two seeds of each row, or one of each and scores of the same "
            "examples."
        )
    if any(found.chance.sentences is not None for found in tested):
        tests.append(f"of the test examples (paired bootstrap, {results.samples:,} samples)")
    seeds = any(found.chance.seeds is not None for found in tested)
    if seeds:
        counts = sorted({len(results.of(row)) for row in results.grid.rows} - {0, 1})
        many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        paired = [row.name for row in results.grid.rows if results.follows(row)]
        pairs = f", seed by seed with {', '.join(paired)}" if paired else ""
        tests.append(f"of the seeds (Welch's t-test, {many} seeds{pairs})")
    count = len(tested)
    text = (
        f"Beyond chance: not to be explained by the choice {' nor by that '.join(tests)}, each alone; "
        f"the larger p is below {results.settings.level:g} after Holm's correction for {count} "
        f"comparison{'s' * (count > 1)}."
    )
    unpaired = {c.row for c in tested if c.chance.sentences is None}
    if unpaired and len(unpaired) < len({c.row for c in tested}):
        names = [row.name for row in results.grid.rows if row.name in unpaired]
        text += f" By the seeds alone, as their examples are not those of the others: {_listed(names)}."
    if not seeds:
        text += " There is one seed of each: what is called better or worse may still be due to the seed."
    if len(tested) < len(results.comparisons):
        text += " Not tested is what has no second seed, or none with a score."
    return text


def _standing(results: Results) -> str:
    counts = {
        status: sum(outcome.status == status for outcome in results.outcomes)
        for status in ("finished", "failed", "open")
    }
    total = len(results.outcomes)
    if counts["finished"] == total:
        return f"All {total} cells are finished."
    parts = [f"{counts['finished']} of {total} cells are finished"]
    parts += [f"{counts['failed']} failed"] if counts["failed"] else []
    parts += [f"{counts['open']} are not"] if counts["open"] else []
    return ", ".join(parts) + "; what is missing counts for nothing below."


def _continued(results: Results) -> list[str]:
    """Whose cost is not all that it took."""
    rows = [row for row in results.grid.rows if row.start is not None]
    return [
        f"{row.name} goes on from {row.start}: its minutes are without those of {row.start}, and it has "
        "learned for longer."
        for row in rows
    ]


def _overall(results: Results) -> list[str]:
    """Who differs from the baseline at all."""
    base = results.baseline
    if base is None or not results.comparisons:
        return []
    found: dict[str, list[str]] = {"better": [], "worse": [], "not told apart": [], "not tested": []}
    for row in results.grid.rows:
        verdicts = {results.verdict(c) for c in results.comparisons if c.row == row.name}
        for side in verdicts & {"better", "worse"} or verdicts & {"not told apart"} or verdicts:
            found[side].append(row.name)
    if not any(found[side] for side in ("better", "worse", "not told apart")):
        return []
    if not (found["better"] or found["worse"] or found["not tested"]):
        return [f"No row differs from {base.name} beyond chance, in any column."]
    words = {
        "better": f"Better than {base.name} beyond chance in some column",
        "worse": f"Worse than {base.name} beyond chance in some column",
        "not told apart": f"Not told apart from {base.name} in any",
        "not tested": f"Not tested against {base.name}",
    }
    parts = [f"{words[side]}: {_listed(rows)}" for side, rows in found.items() if rows]
    return ["; ".join([parts[0], *(part[0].lower() + part[1:] for part in parts[1:])]) + "."]


def _of_column(results: Results, column: Column) -> list[str]:
    count = results.count(column)
    where = column.label + (f" ({count:,} example{'s' * (count > 1)})" if count else "")
    if count == 0:
        return [f"{column.label}: the test set has no example there."]
    values = {row.name: results.value(row, column) for row in results.grid.rows}
    known: dict[str, Value] = {name: value for name, value in values.items() if value is not None}
    if not known:
        done = any(outcome.counts for outcome in results.outcomes)
        return [f"{where}: no cell {'has a score there' if done else 'is finished'}."]
    best = [row.name for row in results.best(column)]
    means = {value.mean for value in known.values()}
    if len(means) == 1 < len(known):
        return [f"{where}: all rows score the same, {digits(means.pop(), column)}."]
    text = f"{where}: {_best(best, known, column)}." if best else f"{where}."
    found = [c for c in results.comparisons if c.column == column]
    if results.baseline is None or results.baseline.name not in known or not found:
        return [text]
    base = results.baseline.name
    text += f" Against {base} ({spread(known[base], column)}): "
    parts = []
    for verdict, words in (
        ("better", "better beyond chance"),
        ("worse", "worse beyond chance"),
        ("not told apart", "not told apart"),
        ("not tested", "not tested"),
    ):
        chosen = [c for c in found if results.verdict(c) == verdict]
        chosen.sort(key=lambda c: -c.chance.difference if column.greater else c.chance.difference)
        if chosen:
            parts.append(f"{words}: {_listed([_difference(c) for c in chosen])}")
    return [text + "; ".join(parts) + "."]


def _best(names: Sequence[str], known: Mapping[str, Value], column: Column) -> str:
    """Who scores best; with how many seeds, where others have more."""
    value = known[names[0]]
    if len(names) > 1:
        return f"{_listed(names)} score best, {digits(value.mean, column)}"
    lone = len(value.scores) == 1 < max(len(other.scores) for other in known.values())
    return f"{names[0]} scores best, {spread(value, column)}" + " with one seed" * lone


def _listed(names: Sequence[str]) -> str:
    """Names; of too many the first, as the tables have all.

    Example:
        >>> _listed([str(n) for n in range(20)])
        '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 10 more'
    """
    if len(names) <= _MOST:
        return ", ".join(names)
    return f"{', '.join(names[: _MOST - 2])} and {len(names) - _MOST + 2} more"


def _difference(comparison: Comparison) -> str:
    sign = "+" if comparison.chance.difference >= 0 else "−"
    return f"{comparison.row} ({sign}{digits(abs(comparison.chance.difference), comparison.column)})"
