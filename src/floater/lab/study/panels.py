"""The panels of a report: figures with their titles and captions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from floater.encodings import PositionError
from floater.errors import DataError
from floater.flow import FlowError
from floater.lab.study import analyses, figures
from floater.lab.study.column import Column
from floater.lab.study.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UNAVAILABLE = (DataError, PositionError, FlowError)


@dataclass(frozen=True)
class Panel:
    """A figure of the report.

    Args:
        title: title above it.
        svg: the figure, for a page.
        caption: caption below it.
        name: name of its files.
        figure: the figure itself.
    """

    title: str
    svg: str
    caption: str
    name: str
    figure: Figure


@dataclass(frozen=True)
class Charts:
    """The figures of scores of a report.

    Args:
        lengths: scores by length, and losses by position.
        learning: curves of the training.
        costs: a score against speed and memory.
    """

    lengths: list[Panel]
    learning: list[Panel]
    costs: list[Panel]


@dataclass(frozen=True)
class Section:
    """One analysis of several models side by side.

    Args:
        title: title of the analysis.
        panels: one for each model.
        missing: why other models have no panel, a line for each reason.
    """

    title: str
    panels: list[Panel]
    missing: list[str]


def charts(results: Results) -> Charts:
    """Return the figures of scores."""
    with figures.themed():
        return Charts([*lengths(results)], [*learning(results)], [*costs(results)])


def lengths(results: Results) -> Iterator[Panel]:
    """Yield scores by length, and losses by position, of each test set."""
    for test in results.metrics:
        binned = [column for column in results.columns() if column.test == test and column.low is not None]
        if binned:
            several = _have_spread(results, binned)
            counts = ", ".join(f"{column.bin_label}: {results.count(column):,}" for column in binned)
            score, where = heading(binned[0].metric_label), f"by length (test set: {test})"
            means = "Means over the seeds; bars are standard deviations." if several else "One seed."
            figure = figures.score_by_length(results, binned)
            yield _panel(f"{score} {where}", figure, f"length-{test}", f"{means} {counts} examples.", results)
            if results.baseline is not None and len(results.grid.variants) > 1:
                figure = figures.score_by_length(results, binned, results.baseline)
                title = f"{score} minus that of {results.baseline.name}, {where}"
                means = "of the means over the seeds" if several else "of one seed each"
                yield _panel(title, figure, f"difference-{test}", f"Differences {means}.", results)
        measured = [outcome.measured[test] for outcome in results.outcomes if test in outcome.measured]
        if any(np.count_nonzero(measurement.position_tokens) > 1 for measurement in measured):
            figure = figures.loss_by_position(results, test)
            caption = "Means over ranges of positions that widen geometrically, all seeds together."
            title = f"Loss per token by position (test set: {test})"
            yield _panel(title, figure, f"position-{test}", caption, results, tabled=False)


def learning(results: Results) -> Iterator[Panel]:
    """Yield training loss, validation loss and the validation score that chooses the checkpoint."""
    logged = {key for outcome in results.outcomes for entry in outcome.log for key in entry}
    labels = {"loss": "training loss", "eval_loss": "validation loss"}
    labels |= {f"eval_{best.metric}": f"validation {best.metric_label}" for best in results.validations}
    several = any(len(results.outcomes_of(variant)) > 1 for variant in figures.shown_variants(results))
    caption = "Means over the seeds; the band is their range." if several else ""
    for key in (key for key in labels if key in logged):
        figure = figures.learning(results, key, labels[key])
        notes = caption if key in ("loss", "eval_loss") else f"{caption} {_validated(results)}".strip()
        yield _panel(heading(labels[key]), figure, f"learning-{key}", notes, results, tabled=False)


def _validated(results: Results) -> str:
    """Describe which weights a validation scored, and the number of translations that did not end."""
    settings, parts = (
        results.outcomes[0].trial.settings,
        [],
    )  # stored results have no settings of their trials
    if settings is not None and (training := settings.training).average_last:
        parts.append(
            "Of the weights at each step; tests are of the mean of the last "
            f"{training.average_last} checkpoints."
        )
    counts = [entry.get("eval_cut_translations", 0) for o in results.outcomes for entry in o.log]
    if any(counts):
        parts.append(
            f"In one validation up to {max(counts)} translations did not end, which lowers BLEU by far more "
            "than their share."
        )
    return " ".join(parts)


def costs(results: Results) -> Iterator[Panel]:
    """Yield figures of a score against speed and memory: the first bin of long inputs, or the first score."""
    columns = results.columns()
    if not columns or not any(o.status == "finished" for o in results.outcomes):
        return
    cut = results.settings.short_to_long
    beyond = [c for c in columns if cut.enabled and c.low is not None and c.low >= cut.cut]
    shown = [*beyond, columns[0]][0]
    caption = {True: "Higher is better.", False: "Lower is better.", None: ""}[shown.greater]
    if _have_spread(results, [shown]):
        caption += " Bars: standard deviation of the score, range of the cost over the seeds."
    for key, title, label in (
        ("tokens_per_second", "speed", "training, tokens/s"),
        ("memory_mib", "memory", "peak memory, MiB"),
    ):
        if all(figures.spent(outcome, key) is None for outcome in results.outcomes):
            continue  # as the speed of trainings too short for a log entry
        figure = figures.cost(results, shown, key, label)
        yield _panel(f"{heading(shown.label)} and {title}", figure, f"cost-{key}", caption.strip(), results)


def positions(results: Results) -> Iterator[Section]:
    """Yield the position analyses of one run of each variant in the charts, and of pretrained models."""
    if not results.settings.figures:  # the runs may have no weights any more
        return
    sources = {
        variant.name: str(done[0].trial.run)
        for variant in figures.shown_variants(results)
        if (done := results.outcomes_of(variant))
    }
    subjects, closed = {}, []
    for name, source in (sources | results.settings.checkpoints).items():
        try:
            subjects[name] = analyses.load_subject(source)
        except _UNAVAILABLE as error:
            closed.append(f"{name}: {error}")
    for kind in results.settings.figures if subjects else []:
        plots: dict[str, analyses.Plot] = {}
        missing: dict[str, list[str]] = {}
        for name, subject in subjects.items():
            try:
                plots[name] = analyses.draw(subject, kind)
            except _UNAVAILABLE as error:
                reason = str(error).split("; floater plot shows")[0].removeprefix(f"{subject.name} ")
                missing.setdefault(reason, []).append(name)
        without = [f"{', '.join(names)}: {reason}" for reason, names in missing.items()]
        yield section(kind, plots, closed + without)


def section(kind: str, plots: Mapping[str, analyses.Plot], missing: list[str]) -> Section:
    """Return the plots of an analysis side by side, all colour maps on one scale.

    Args:
        kind: kind of the analysis, a key of `floater.lab.study.analyses.KINDS`.
        plots: plots by model.
        missing: why other models have no plot, a line for each reason.
    """
    images = [image for plot in plots.values() for axes in plot.figure.axes for image in axes.images]
    limits = [image.get_clim() for image in images]
    for image in images:
        image.set_clim(min(low for low, _ in limits), max(high for _, high in limits))
    panels = []
    for name, plot in plots.items():
        width, height = plot.figure.get_size_inches()
        plot.figure.set_size_inches(4.2, 4.2 * height / width)  # text can be read side by side
        for axes in plot.figure.axes:
            if axes.get_title().split() == plot.title.split():
                axes.set_title("")
        plot.figure.suptitle("")
        svg = figures.svg(plot.figure, f"{kind}-{name}", f"{plot.title}. {plot.text}")
        panels.append(Panel(name, svg, plot.text, f"{kind}-{name}", plot.figure))
    return Section(heading(analyses.KINDS[kind].help), panels, missing)


def heading(label: str) -> str:
    """Return a label as a heading begins: with a capital, except for a name.

    Example:
        >>> heading("loss"), heading("chrF")
        ('Loss', 'chrF')
    """
    return label if label == "chrF" else label[0].upper() + label[1:]


def _have_spread(results: Results, columns: Sequence[Column]) -> bool:
    """Return whether any score in the charts has a standard deviation over seeds."""
    values = (
        results.value(variant, column) for variant in figures.shown_variants(results) for column in columns
    )
    return any(value is not None and value.spread is not None for value in values)


def _panel(
    title: str, figure: Any, name: str, caption: str, results: Results, *, tabled: bool = True
) -> Panel:
    variants = ", ".join(variant.name for variant in figures.shown_variants(results))
    description = f"{title}, for {variants}." + " The tables have the numbers." * tabled
    return Panel(title, figures.svg(figure, name, description), caption, name, figure)
