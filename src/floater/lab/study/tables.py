"""The tables of a study."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from floater.lab.study.column import VALIDATION, Column
from floater.lab.study.figures import spent
from floater.lab.study.results import Comparison, Results, Value
from floater.lab.study.tuning import best as best_label
from floater.lab.study.variants import Variant
from floater.lab.table import Cell, Table, as_csv

MARKS = {"better": "▲", "worse": "▼", "not significant": "", "not tested": ""}
EMPTY = "–"
PERCENT = ("bleu", "chrf", "tokenised_bleu", "accuracy", "exact", "f1", "tokens")
"""Metrics from 0 to 100, shown to a tenth."""


def scores(results: Results) -> Table:
    """Return the table of all variants, one per row: scores with their spreads, parameters, cost."""
    columns = results.columns()
    best = {column: results.best(column) for column in columns}
    table = []
    for variant in results.grid.variants:
        outcomes = [o for o in results.outcomes if o.trial.variant.name == variant.name]
        done = results.outcomes_of(variant)
        first = done[0].cost if done else {}
        line = [
            Cell(variant.name),
            *(_score(results, variant, column, variant in best[column]) for column in columns),
            _positions(first),
            _number(first.get("parameters")),
            Cell(
                f"{(finished := sum(o.status == 'finished' for o in outcomes))}/{len(variant.seeds)}",
                "failed" * any(o.status == "failed" for o in outcomes),
                {"": finished},
            ),
            *(_spent(results, variant, key) for key in ("tokens_per_second", "memory_mib", "minutes")),
        ]
        table.append(line)
    head = ["model", *(column.label for column in columns), "position parameters", "parameters"]
    return Table([*head, "seeds", "tokens/s", "MiB", "minutes"], table)


def legend(results: Results, table: Table) -> str:
    """Explain the means, the bold ones and the marks of a table of scores."""
    cells = [cell for row in table.rows for cell in row]
    marks = {character for cell in cells for character in cell.text}
    text = "Means over the seeds that have a score" + " ± their standard deviation" * ("±" in marks)
    text += "; the best mean is bold." if any("best" in cell.kind.split() for cell in cells) else "."
    if marks & {*MARKS.values()}:
        text += f" ▲ better, ▼ worse than {results.base_name} (statistically significant)."
    return text


def by_axis(results: Results) -> tuple[str, dict[str, Table]]:
    """Return the axis with the most labels, and a table for each main score with a column for each label.

    The best mean of a label is bold. A label without scores has no column, and a score of one label no table.
    """
    axes = results.settings.compared_axes
    axis = max(axes, key=lambda name: len(axes[name]), default="")
    if len(axes.get(axis, ())) < 2:
        return "", {}
    index, rows = [*axes].index(axis), dict[str, dict[str, Variant]]()
    for variant in results.by_key.values():
        labels = [*variant.labels]
        label = labels.pop(index)
        rows.setdefault("-".join((variant.base_name, *labels)), {})[label] = variant
    tables = {}
    for column in results.columns():
        head, lines = ["model"], [[Cell(name)] for name in rows]
        for label in axes[axis]:
            there = [by_label.get(label) for by_label in rows.values()]
            variants = [variant for variant in there if variant is not None]
            if not any(results.value(variant, column) for variant in variants):
                continue  # as of a task of GLUE that has another metric
            head.append(label)
            best, missing = results.best(column, variants), Cell(EMPTY, values={"": None})
            for line, each in zip(lines, there, strict=True):
                line.append(_score(results, each, column, each in best) if each else missing)
        if len(head) > 2:
            tables[column.label] = Table(head, lines)
    return axis, tables


def others(results: Results) -> dict[str, Table]:
    """Return a table for each metric besides the first of each test set, by the metric's label."""
    columns = [column for column in results.columns(None) if column not in results.columns()]
    tables = {}
    for label in dict.fromkeys(column.metric_label for column in columns):
        chosen = [column for column in columns if column.metric_label == label]
        best = {column: results.best(column) for column in chosen}
        rows = [
            [
                Cell(variant.name),
                *(_score(results, variant, column, variant in best[column]) for column in chosen),
            ]
            for variant in results.grid.variants
        ]
        head = [column.label.removeprefix(label).strip() or label for column in chosen]
        tables[label] = Table(["model", *head], rows)
    return tables


def answer(results: Results) -> Table:
    """Return the table of the settings' comparisons: a row for each pair, a column for each score."""
    columns, rows = results.columns(), []
    for ours, theirs in results.asked:
        names = ours.name, theirs.name
        there = {c.column: c for c in results.comparisons if (c.variant, c.reference) == names}
        cells = [Cell(" − ".join(names))]
        for column in columns:
            comparison = there.get(column)
            conclusion = results.conclusion(comparison) if comparison else "not tested"
            text = f"{signed(comparison)} {MARKS[conclusion]}".strip() if comparison else EMPTY
            cells.append(Cell(text, conclusion if MARKS[conclusion] else ""))
        rows.append(cells)
    return Table(["difference", *(column.label for column in columns)], rows)


def signed(comparison: Comparison) -> str:
    """Return a difference with its sign."""
    sign = "−" if math.copysign(1, comparison.difference.mean) < 0 else "+"
    return f"{sign}{digits(abs(comparison.difference.mean), comparison.column)}"


def compared(results: Results) -> Table:
    """Return the table of all comparisons, one per row, with their p values."""
    rows = []
    for comparison in results.comparisons:
        ps = [comparison.difference.p_examples, comparison.difference.p_seeds, comparison.p]
        conclusion = results.conclusion(comparison)
        rows.append(
            [
                Cell(comparison.variant),
                Cell(comparison.reference),
                Cell(comparison.column.label),
                Cell(signed(comparison)),
                *(Cell(_probability(p)) for p in ps),
                Cell(conclusion, conclusion if MARKS[conclusion] else ""),
            ]
        )
    head = [
        "variant",
        "against",
        "score",
        "difference",
        "p (examples)",
        "p (seeds)",
        "p (Holm)",
        "conclusion",
    ]
    return Table(head, rows)


def tuning(results: Results) -> Table:
    """Return the validation scores of the labels that were tried for each variant, the best one bold."""
    tried = results.grid.tried
    rows = []
    for key, labels in tried.items():
        chosen = best_label(labels)
        row = [Cell(key)]
        for label, each in labels.items():
            if each.score is None:
                row.append(Cell("failed" if each.error else EMPTY, "failed" * bool(each.error), {"": None}))
            else:
                column = Column(VALIDATION, each.metric)
                row.append(Cell(digits(each.score, column), "best" * (label == chosen), {"": each.score}))
        rows.append(row)
    return Table(["model", *next(iter(tried.values()))], rows)


def trials(results: Results) -> Table:
    """Return the table of all trials, one per row, with their status, scores and cost."""
    columns = results.columns()
    rows = []
    for outcome in results.outcomes:
        scores = [outcome.score(column) for column in columns]
        failed = f"failed: {outcome.error}" if outcome.status == "failed" else ""
        rows.append(
            [
                Cell(outcome.trial.name),
                Cell(
                    failed or {"open": "not finished"}.get(outcome.status, outcome.status),
                    "failed" * bool(failed),
                ),
                *(
                    Cell(EMPTY if score is None else digits(score, column), values={"": score})
                    for score, column in zip(scores, columns, strict=True)
                ),
                *(_number(spent(outcome, key)) for key in ("tokens_per_second", "memory_mib")),
                _number(spent(outcome, "minutes"), 1),
            ]
        )
    return Table(
        ["trial", "status", *(column.label for column in columns), "tokens/s", "MiB", "minutes"], rows
    )


def records(results: Results) -> list[dict[str, Any]]:
    """Return the records of `floater study --json`, one for each variant and column of the table.

    A column is a test set, a metric and, for a bin of lengths, its bounds; scores are unrounded.
    """
    records = []
    for variant in results.grid.variants:
        for column in results.columns(None):
            value, compared = results.value(variant, column), results.compared(variant, column)
            key = {"test": column.test, "metric": column.metric, "low": column.low, "high": column.high}
            scores = {"mean": value.mean, "std": value.spread, "scores": value.scores} if value else {}
            tested = {"p": compared.p, "conclusion": results.conclusion(compared)} if compared else {}
            records.append({"variant": variant.name} | key | scores | tested)
    return records


def scores_csv(results: Results) -> str:
    """Return all scores of all trials as CSV, one per line and unrounded."""
    head = ["model", "seed", "test", "metric", "low", "high", "examples", "score"]
    lines: list[list[object]] = [[*head]]
    for outcome in results.outcomes:
        if not outcome.counts:
            continue
        for column in results.columns(None):
            key = [column.test, column.metric, column.low, column.high, outcome.count(column)]
            lines.append([outcome.trial.variant.name, outcome.trial.seed, *key, outcome.score(column)])
    return as_csv(lines)


def comparisons_csv(results: Results) -> str:
    """Return all comparisons as CSV: difference, p over examples and over seeds, corrected p, conclusion."""
    head = ["model", "reference", "test", "metric", "low", "high", "difference"]
    lines: list[list[object]] = [[*head, "p_examples", "p_seeds", "p_corrected", "conclusion"]]
    for comparison in results.comparisons:
        column, difference = comparison.column, comparison.difference
        names = [
            comparison.variant,
            comparison.reference,
            column.test,
            column.metric,
            column.low,
            column.high,
        ]
        ps = [difference.mean, difference.p_examples, difference.p_seeds, comparison.p]
        lines.append([*names, *ps, results.conclusion(comparison)])
    return as_csv(lines)


def spread(value: Value, column: Column) -> str:
    """Format a mean and its standard deviation over the seeds, and their number if some have no score.

    Example:
        >>> bleu, loss = Column("news", "bleu"), Column("news", "loss")
        >>> spread(Value([36.0, 38.0], 2), bleu), spread(Value([1.7342], 1), loss)
        ('37.0 ± 1.4', '1.734')
        >>> spread(Value([36.0, 38.0], 3), bleu)
        '37.0 ± 1.4 (2 of 3 seeds)'
    """
    deviation, some = value.spread, len(value.scores)
    text = digits(value.mean, column) + ("" if deviation is None else f" ± {digits(deviation, column)}")
    return text + f" ({some} of {value.seeds} seeds)" * (some < value.seeds)


def _score(results: Results, variant: Variant, column: Column, best: bool) -> Cell:
    value = results.value(variant, column)
    if value is None:
        return Cell(EMPTY, values={"": None})
    comparison = results.compared(variant, column)
    conclusion = results.conclusion(comparison) if comparison else "not tested"
    text = f"{spread(value, column)} {MARKS[conclusion]}".strip()
    kinds = [*(["best"] if best else []), *([conclusion] if MARKS[conclusion] else [])]
    numbers: dict[str, Any] = {"": value.mean, "std": value.spread, "seeds": len(value.scores)}
    if results.references:
        numbers[f"against {results.base_name}"] = conclusion if comparison else None
    return Cell(text, " ".join(kinds), numbers)


def digits(value: float, column: Column) -> str:
    """Format a score of a column: percentages with one decimal, other metrics with three."""
    return f"{value:.{1 if column.metric in PERCENT else 3}f}"


def _probability(p: float | None) -> str:
    if p is None:
        return EMPTY
    return "< 0.0001" if p < 5e-5 else f"{p:.4f}"


def _number(value: float | None, decimals: int = 0) -> Cell:
    return Cell(EMPTY if value is None else f"{value:,.{decimals}f}", values={"": value})


def _positions(cost: Mapping[str, Any]) -> Cell:
    """Return the position parameters of a model, in brackets those that Liu et al. 2020 count in Table 6."""
    cell, one = _number(cost.get("position_parameters")), cost.get("position_parameters_of_a_stack")
    if not one:
        return cell
    return Cell(f"{cell.text} ({one:,})", values=dict(cell.values) | {"of a stack": one})


def _spent(results: Results, variant: Variant, key: str) -> Cell:
    """Return the median over the seeds; for minutes the minimum, since other work only adds to them."""
    amounts = [
        value for outcome in results.outcomes_of(variant) if (value := spent(outcome, key)) is not None
    ]
    if not amounts:
        return _number(None)
    return _number(min(amounts), 1) if key == "minutes" else _number(float(np.median(amounts)))
